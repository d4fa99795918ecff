"""What a disk refused, in a sentence: a full disk or a read-only folder is the user's to fix, and not a crash."""

import errno
import os
import re

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
# How libraries that are written in Rust, such as safetensors, tell an error of the operating system.
_IN_WORDS = re.compile(r"\(os error (\d+)\)")


def disk_fault(error: BaseException, unnamed: str = "A file") -> str | None:
    """What cannot be read or written and what to do about it; None for an error that is none of the disk.

    `unnamed` stands for a file whose name the error does not tell.
    """
    number = _number(error)
    if number not in (*_FULL, *_REFUSED):
        return None
    name = getattr(error, "filename", None)
    what = unnamed if name is None else str(name)
    fix = "Make room there, or choose another place." if number in _FULL else "Choose another place."
    # Only a full or read-only disk says that it was to be written; a permission may be missing for reading, too.
    refused = "written" if number in (*_FULL, errno.EROFS) else "read or written"
    return f"{what} cannot be {refused}: {os.strerror(number)}. {fix}"


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    said = _IN_WORDS.search(str(error))
    return int(said[1]) if said else None
