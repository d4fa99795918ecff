"""A worker ends with the process that watches it."""

import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36


def end_with_parent(parent_pid: int) -> None:
    """From here on this process is killed when its parent ends, however that ends. Linux only."""
    if sys.platform != "linux":
        return
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # it ended in the meantime


def adopt_orphans() -> None:
    """From here on this process becomes the parent of its descendants whose parents end. Linux only."""
    if sys.platform == "linux":
        _prctl(_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
