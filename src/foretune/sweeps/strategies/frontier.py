"""The largest value of an axis that fits in memory, with as few trials as possible.

A forecast decides where to look, never what the answer is: the largest value that fits has been run, and so has the
next larger one, which did not fit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from foretune.choices.picture_size import width_and_height
from foretune.choices.sweep import AxisOption, combinations, value_label
from foretune.sweeps.strategies.seam import NOT_FITTING, MemoryExcess, Point, PointResult, SearchSpace


@dataclass(frozen=True)
class Frontier:
    """What is known of one line: the searched axis, with the other axes fixed."""

    fits: int | None
    """Position of the largest value that was run and fits; None where none was."""
    fails: int | None
    """Position of the smallest value that was run and does not fit."""

    def is_found(self, num_values: int) -> bool:
        """Whether no trial could change it."""
        low = -1 if self.fits is None else self.fits
        high = num_values if self.fails is None else self.fails
        return high - low <= 1


class FrontierSearch:
    """One search for each combination of the other axes; they can run beside each other."""

    def __init__(self, space: SearchSpace, key: str, *, uses_forecast: bool) -> None:
        self.num_planned: int | None = None
        self._values = sorted(space.options[key], key=_size)
        others = {axis: list(options) for axis, options in space.options.items() if axis != key}
        self._lines = []
        for fixed in combinations(others):
            values = [value for value in self._values if not space.is_excluded({**fixed, key: value})]
            if values:
                points: list[Point] = [
                    {axis: {**fixed, key: value}[axis] for axis in space.options} for value in values
                ]
                self._lines.append(_Line(points, space.estimate if uses_forecast else _no_estimate))

    def propose(self, results: Sequence[PointResult], num_free: Callable[[], int | None]) -> list[Point]:
        known = {_key(result.labels): result for result in results}
        proposed = [line.next(known) for line in self._lines]
        return [point for point in proposed if point is not None]

    def frontiers(self, results: Sequence[PointResult]) -> list[tuple[list[Point], Frontier]]:
        """What is known of each line."""
        known = {_key(result.labels): result for result in results}
        return [(line.points, line.frontier(known)) for line in self._lines]

    def predicted(self, results: Sequence[PointResult]) -> list[Point]:
        """Combinations that a bisection would have run, and whose forecast does not fit with margin."""
        known = {_key(result.labels): result for result in results}
        return [point for line in self._lines for point in line.predicted(known)]


class _Line:
    """The search along one line."""

    def __init__(self, points: list[Point], estimate: Callable[[Point], MemoryExcess | None]) -> None:
        self.points = points
        self._estimate = cache(lambda number: estimate(points[number]))
        self._proposed: set[int] = set()

    def frontier(self, known: Mapping[tuple[str, ...], PointResult]) -> Frontier:
        found = {number: known.get(_key(_labels(point))) for number, point in enumerate(self.points)}
        fits = [number for number, result in found.items() if result is not None and result.kind == "done"]
        run = [kind for kind in NOT_FITTING if kind != "predicted not to fit"]
        fails = [number for number, result in found.items() if result is not None and result.kind in run]
        return Frontier(max(fits, default=None), min(fails, default=None))

    def next(self, known: Mapping[tuple[str, ...], PointResult]) -> Point | None:
        if any(_key(_labels(self.points[number])) not in known for number in self._proposed):
            return None  # one at a time: the next choice depends on it
        broken = [
            number
            for number in self._proposed
            if known[_key(_labels(self.points[number]))].kind not in ("done", *NOT_FITTING)
        ]
        if broken:
            return None  # what failed for another reason says nothing about memory
        found = self.frontier(known)
        if found.is_found(len(self.points)):
            return None
        number = self._choose(found)
        self._proposed.add(number)
        return self.points[number]

    def predicted(self, known: Mapping[tuple[str, ...], PointResult]) -> list[Point]:
        found = self.frontier(known)
        if found.fails is None or not found.is_found(len(self.points)):
            return []
        larger = [number for number in bisection_probes(len(self.points), found.fails) if number > found.fails]
        return [self.points[number] for number in larger if self._is_far_too_large(number)]

    def _is_far_too_large(self, number: int) -> bool:
        estimate = self._estimate(number)
        return estimate is not None and estimate.low_bytes > 0

    def _choose(self, found: Frontier) -> int:
        low = -1 if found.fits is None else found.fits
        high = len(self.points) if found.fails is None else found.fails
        guess = self._guess()
        if guess is None:
            return (low + high) // 2
        if not self._proposed:
            return min(max(guess, 0), len(self.points) - 1)
        if found.fits is not None and found.fails is not None:
            return (low + high) // 2
        # One side is known: look beside it, then twice as far away each time.
        distance = 1 << (len(self._proposed) - 1)
        return min(low + distance, high - 1) if found.fits is not None else max(high - distance, 0)

    def _guess(self) -> int | None:
        """The largest value whose forecast fits, or the smallest value; None without a forecast."""
        low, high = -1, len(self.points)
        while high - low > 1:
            middle = (low + high) // 2
            estimate = self._estimate(middle)
            if estimate is None:
                return None
            low, high = (middle, high) if estimate.likely_bytes <= 0 else (low, middle)
        return max(low, 0)


def bisection_probes(num_values: int, num_fitting: int) -> list[int]:
    """The positions that a bisection without forecast runs, where the first `num_fitting` values fit."""
    low, high, probes = -1, num_values, []
    while high - low > 1:
        middle = (low + high) // 2
        probes.append(middle)
        low, high = (middle, high) if middle < num_fitting else (low, middle)
    return probes


def _no_estimate(_: Point) -> MemoryExcess | None:
    return None


def _labels(point: Point) -> dict[str, str]:
    return {axis: option.label for axis, option in point.items()}


def _key(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{axis}={labels[axis]}" for axis in sorted(labels))


def _size(option: AxisOption) -> float:
    return size_of(value_label(option.value))


def size_of(label: str) -> float:
    """A size as text: 8, or the area of a width and a height such as 416x240. Raises ValueError for anything else."""
    try:
        return float(label)
    except ValueError:
        width_px, height_px = width_and_height(label)
        return float(width_px * height_px)
