"""`task.lock`: held by the worker for as long as it lives, so that a task never runs twice at the same time."""

from pathlib import Path
from typing import IO

from foretune.record.locking import is_held, try_lock

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
    return True if path in _held else is_held(path)
