"""`task.lock`: held by the worker for as long as it lives, so that a task never runs twice at the same time."""

import os
import struct
import sys
from pathlib import Path
from typing import IO

from foretune.record.locking import try_lock

LOCK = "task.lock"

_held: dict[Path, IO[str]] = {}
"""Locks of this process. The system drops a lock when its process closes the file anywhere, so that a held file is
never opened a second time."""


def take_lock(folder: Path) -> bool:
    """Whether this process holds the task now. It does until `release_lock`, or until it ends, however it ends."""
    path = folder.resolve() / LOCK
    assert path not in _held, f"{path} is held by this process already"
    file = path.open("w")
    if not try_lock(file.fileno()):
        file.close()
        return False
    _held[path] = file
    return True


def release_lock(folder: Path) -> None:
    _held.pop(folder.resolve() / LOCK).close()


def is_locked(folder: Path) -> bool | None:
    """Whether a process holds the task; None where the file system cannot tell. The lock is not touched."""
    path = folder.resolve() / LOCK
    if path in _held:
        return True
    if os.name != "posix":
        return None
    import fcntl

    # struct flock of the C library; Python has no wrapper for "who would be in my way?".
    layout = "hhqqi" if sys.platform == "linux" else "qqihh"
    question = (fcntl.F_WRLCK, 0, 0, 0, 0) if sys.platform == "linux" else (0, 0, 0, fcntl.F_WRLCK, 0)
    try:
        with path.open("r+") as file:
            answer = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(layout, *question)))
    except FileNotFoundError:
        return False
    except OSError:
        return None
    kind: int = answer[0 if sys.platform == "linux" else 3]
    return kind != fcntl.F_UNLCK
