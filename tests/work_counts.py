"""Work as counts: how many calls something makes and how much memory it takes, the same on every machine."""

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class Work:
    """What was done, without its time."""

    num_calls: int
    """Of functions, those written in C included; each value that a generator yields counts as one."""
    peak_bytes: int
    """Most that was allocated at once, above what was there before."""


def work_of(do: Callable[[], object]) -> Work:
    """Does it once and counts."""
    num_calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    before = sys.getprofile()
    tracemalloc.start()
    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(before)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return Work(num_calls, peak_bytes)
