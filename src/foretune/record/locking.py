"""One process a run: two that write the same checkpoints would destroy each other's."""

import hashlib
import json
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from foretune.core.errors import UserError
from foretune.core.input_files import read_json

_MOST_LOCK_BYTES = 4096
_held: set[Path] = set()
"""Locks of this process. The system drops a lock when its process closes the file anywhere, so that a held file is
never opened a second time."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file for as long as the block lasts. The system lets go of it when the process dies, however.

    Its content says on which machine the last holder is, or was; its time, since when.
    """
    # Not "w": whoever comes too late would empty the file of the holder.
    with path.open("a") as file:
        if not try_lock(file.fileno()):
            raise UserError(
                f"{path.parent} is being written by another process. Wait for it, or start a run of its own: "
                "foretune train experiment.yaml"
            )
        # A full disk must not stop a run for the sake of a note.
        with suppress(OSError):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), json.dumps({"machine": machine_id(), "pid": os.getpid()}).encode())
        key = path.resolve()
        _held.add(key)
        try:
            yield
        finally:
            _held.discard(key)


def try_lock(descriptor: int) -> bool:
    """Whether an open file could be locked for this process, until it is closed."""
    if os.name != "posix":
        return True  # no advisory locks there that a killed process would release
    import fcntl

    try:
        # Not flock: loader processes would inherit it, and outlive a killed run by seconds.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True  # a file system that knows no locks
    return True


def is_held(path: Path) -> bool | None:
    """Whether a process holds a lock file; None where the file system cannot tell. The lock is not touched."""
    if path.resolve() in _held:
        return True
    if os.name != "posix":
        return None
    import fcntl

    # struct flock of the C library; Python has no wrapper for "who would be in my way?".
    layout = "hhqqi" if sys.platform == "linux" else "qqihh"
    # Whether it could be locked for reading, for which a file that cannot be written is enough.
    question = (fcntl.F_RDLCK, 0, 0, 0, 0) if sys.platform == "linux" else (0, 0, 0, fcntl.F_RDLCK, 0)
    try:
        # Opening a pipe for reading would wait for somebody to write to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        answer = struct.unpack(layout, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(layout, *question)))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    kind: int = answer[0 if sys.platform == "linux" else 3]
    return kind != fcntl.F_UNLCK


def is_of_this_machine(path: Path) -> bool | None:
    """Whether the last holder of a lock file was a process of this machine; None where the file does not say."""
    if path.resolve() in _held:
        return True
    try:
        content = read_json(path, _MOST_LOCK_BYTES, within=path.parent)
    except (OSError, ValueError, UserError):
        return None
    machine = content.get("machine") if isinstance(content, dict) else None
    return machine == machine_id() if isinstance(machine, str) else None


def machine_id() -> str:
    """Differs between machines without naming them: run directories travel."""
    return hashlib.blake2b(socket.gethostname().encode(errors="surrogateescape"), digest_size=8).hexdigest()
