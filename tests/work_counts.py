"""Work as counts: calls, memory and opened files of something, the same on every machine."""

import os
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


_opened: list[str] | None = None
"""Names of the files that are opened while somebody counts."""
_is_hooked = False


def files_opened(do: Callable[[], object]) -> list[str]:
    """Does it once, and names every file that Python opened meanwhile, as often as it did."""
    global _opened, _is_hooked  # noqa: PLW0603 - a hook of the interpreter cannot be taken away again
    if not _is_hooked:
        sys.addaudithook(_note_opened)
        _is_hooked = True
    found: list[str] = []
    _opened = found
    try:
        do()
    finally:
        _opened = None
    return found


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], (str, bytes)):
        _opened.append(os.fsdecode(arguments[0]))
