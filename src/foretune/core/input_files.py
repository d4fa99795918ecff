"""Files that others wrote, opened so that none of them can reach further than its folder, hang the reader or fill the
memory.

Only regular files are opened, and only up to a size. What is opened is what was examined: every check is made on the
open descriptor, so that a file that is replaced in between is refused too. With `within`, no link leads out of that
folder: each part of the path is opened without following links, and a link inside of the folder counts as the file
that it leads to.
"""

import errno
import json
import os
import stat
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from foretune.core.errors import UserError
from foretune.core.units import bytes_text

MOST_JSON_BYTES = 64 * 2**20
"""Of a JSON file that a run, a study or a model's publisher wrote: many times what any of them needs."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}
# Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever. Flags that Windows lacks are 0 there.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_OPENS_BY_PARTS = bool(_NOFOLLOW) and os.open in os.supports_dir_fd
# Control characters, halves of characters (how Python writes bytes that are not UTF-8), ends of lines and paragraphs.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
# They turn the direction of the text after them, so that a name reads as another.
_DIRECTIONS = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BLOCK_BYTES = 2**20
_ESCAPED_BYTES = range(0xDC80, 0xDD00)


class RefusedFile(UserError):
    """A file that is there and is not read."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(f"{shown(path)} {why}")


class OutsideFile(RefusedFile):
    """A file that a link or a path places outside of the folder it should be in."""

    def __init__(self, path: Path, leads_to: str, folder: Path) -> None:
        how = "is" if leads_to == str(path) else f"leads to {shown(leads_to)},"
        super().__init__(path, f"{how} outside of {shown(folder)}, so it is not read. Put the file itself there.")


def shown(name: str | Path) -> str:
    """A name as a message shows it: control characters, line breaks and bytes that are not UTF-8 as escapes."""
    text = str(name)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(letter) if _is_hidden(letter) else letter for letter in text)


def shown_lines(text: str) -> str:
    """Text of several lines as a terminal is given it: nothing in it can move the cursor or hide a line."""
    return "".join(_escape(letter) if _is_hidden(letter) and letter not in "\n\t" else letter for letter in text)


def _is_hidden(letter: str) -> bool:
    return unicodedata.category(letter) in _HIDDEN_CATEGORIES or letter in _DIRECTIONS


def _escape(letter: str) -> str:
    if ord(letter) in _ESCAPED_BYTES:
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode("ascii")


def open_input(path: Path, most_bytes: int, *, within: Path | None = None) -> BinaryIO:
    """A regular file of at most this size, open for reading. Raises `RefusedFile`, or OSError as `open` does.

    `within` is the folder that it must lie in, links resolved; None follows links anywhere.
    """
    descriptor = _open_anywhere(path) if within is None else _open_within(path, within)
    try:
        found = os.fstat(descriptor)
        _require_regular(path, found)
        if found.st_size > most_bytes:
            size, limit = bytes_text(found.st_size), bytes_text(most_bytes)
            raise RefusedFile(path, f"has {size}; at most {limit} are read. Make it smaller, or take it away.")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, most_bytes: int, *, within: Path | None = None) -> bytes:
    """The content of a file as it is when it is opened; see `open_input`."""
    with open_input(path, most_bytes, within=within) as file:
        return read_opened(file)


def read_opened(file: BinaryIO) -> bytes:
    """As much as the file had when it was opened: one that grows meanwhile has passed no limit."""
    return file.read(os.fstat(file.fileno()).st_size)


def read_text(path: Path, most_bytes: int, *, within: Path | None = None) -> str:
    """The text of a UTF-8 file, without a byte-order mark; see `open_input`."""
    data = read_bytes(path, most_bytes, within=within)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise RefusedFile(
            path, f"is not text in UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8."
        ) from error


def read_json(path: Path, most_bytes: int, *, within: Path | None = None) -> Any:
    """What a JSON file says; see `open_input`. Raises ValueError where it is not JSON."""
    return parse_json(read_text(path, most_bytes, within=within))


def read_bounded(read: Callable[[int], bytes], most_bytes: int, path: Path) -> bytes:
    """What comes out where a file is unpacked: refused as soon as it is more than it should be."""
    parts, num_bytes = [], 0
    while part := read(_BLOCK_BYTES):
        parts.append(part)
        num_bytes += len(part)
        if num_bytes > most_bytes:
            raise RefusedFile(path, f"unpacks to more than {bytes_text(most_bytes)}, so it is not read. Remove it.")
    return b"".join(parts)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """What a JSON text says. Raises ValueError, also where it is nested so deeply that the reader gives up."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _open_anywhere(path: Path) -> int:
    # Opening a device can do something; so it is looked at before it is opened, and what was opened once more.
    try:
        _require_regular(path, path.stat())
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _leads_to_itself(path) from error
    return os.open(path, _READ)


def _open_within(path: Path, within: Path) -> int:
    below = _below(path, within)
    if below is not None and _OPENS_BY_PARTS:
        try:
            return _open_by_parts(path, within, below)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
    # There is a link on the way. The place it leads to is opened in turn, without following another one.
    folder = Path(os.path.realpath(within))
    real = Path(_real_path(path))
    if not real.is_relative_to(folder):
        raise OutsideFile(path, str(real), within)
    if not _OPENS_BY_PARTS:
        return _open_anywhere(real)
    try:
        return _open_by_parts(path, folder, list(real.relative_to(folder).parts))
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise RefusedFile(path, "changed while it was opened, so it is not read. Start again.") from error


def _below(path: Path, folder: Path) -> list[str] | None:
    """The parts of a path below a folder, by their names alone; None where it is not, or goes up again.

    As text, because a folder of a million images asks a million times.
    """
    whole, start = str(path), str(folder) + os.sep
    if not whole.startswith(start):
        return None
    parts = whole[len(start) :].split(os.sep)  # noqa: PTH206 - see above
    return None if ".." in parts else parts


def _real_path(path: Path) -> str:
    try:
        return os.path.realpath(path, strict=True)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _leads_to_itself(path) from error


def _leads_to_itself(path: Path) -> RefusedFile:
    return RefusedFile(path, "is a link that leads back to itself. Remove it.")


def _open_by_parts(path: Path, folder: Path, parts: list[str]) -> int:
    if not parts:
        raise RefusedFile(path, "is a folder, not a file.")
    parent = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER | _NOFOLLOW, dir_fd=parent)
            os.close(parent)
            parent = inner
        found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        _require_regular(path, found)
        return os.open(parts[-1], _READ | _NOFOLLOW, dir_fd=parent)
    finally:
        os.close(parent)


def _require_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise RefusedFile(path, f"is {kind}, not a file, so it is not read. Remove it, or replace it by a file.")
