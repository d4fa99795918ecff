"""One process a run: two that write the same checkpoints would destroy each other's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foretune.core.errors import UserError


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file for as long as the block lasts. The system lets go of it when the process dies, however."""
    with path.open("w") as file:
        if not try_lock(file.fileno()):
            raise UserError(
                f"{path.parent} is being written by another process. Wait for it, or start a run of its own: "
                "foretune train experiment.yaml"
            )
        yield


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
