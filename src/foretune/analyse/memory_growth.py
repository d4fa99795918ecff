"""Memory that grows with every step: a leak, distinguished from the growth of a run that is still warming up."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_NUM_WINDOWS = 6
_FEWEST_PER_WINDOW = 4
_LEAST_GROWTH = 0.01
"""Of what is held: less is not worth an alarm, and allocators wander that much."""
_MOST_UNEVEN = 3.0
"""A leak grows as much late as early; a cache fills and stops."""


@dataclass(frozen=True)
class MemoryGrowth:
    """How much a series grows with each step."""

    bytes_per_step: float
    grown_bytes: int
    """From the first stretch of the series to the last."""
    held_bytes: int
    """At the end."""

    @property
    def share(self) -> float:
        """Of what was held before."""
        return self.grown_bytes / (self.held_bytes - self.grown_bytes)


def find_leak(series: Sequence[tuple[int, int]]) -> MemoryGrowth | None:
    """A leak in a series of (step, bytes held after it); None where there is none, or too little to tell.

    The series is cut into stretches of equal length. In a leak each holds more than the one before, by amounts that are
    alike; the warm-up is left out before.
    """
    if len(series) < _NUM_WINDOWS * _FEWEST_PER_WINDOW:
        return None
    size = len(series) // _NUM_WINDOWS
    tail = series[len(series) - size * _NUM_WINDOWS :]
    windows = [tail[place : place + size] for place in range(0, len(tail), size)]
    levels = [statistics.median(held for _, held in window) for window in windows]
    rises = [after - before for before, after in itertools.pairwise(levels)]
    grown = levels[-1] - levels[0]
    typical = grown / len(rises)
    is_even = all(typical / _MOST_UNEVEN <= rise <= typical * _MOST_UNEVEN for rise in rises)
    if grown < _LEAST_GROWTH * levels[0] or not is_even:
        return None
    middle = [statistics.median(step for step, _ in window) for window in windows]
    return MemoryGrowth(grown / (middle[-1] - middle[0]), round(grown), tail[-1][1])
