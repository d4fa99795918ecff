"""Some combinations, drawn at random without repetition."""

import math
import random
from collections.abc import Callable, Sequence

from foretune.sweeps.strategies.seam import Point, PointResult, SearchSpace

_MOST_LISTED = 100_000
"""Combinations that are listed to draw from; of more, numbers are drawn until enough of them are not excluded."""


class Drawn:
    """The first `trials` of a random order of all combinations that are not excluded."""

    def __init__(self, space: SearchSpace, trials: int, seed: int) -> None:
        self._space = space
        self._points = self._draw(trials, random.Random(seed))
        self.num_planned: int | None = len(self._points)

    def propose(self, results: Sequence[PointResult], num_free: Callable[[], int | None]) -> list[Point]:
        points, self._points = self._points, []
        return points

    def _draw(self, trials: int, draws: random.Random) -> list[Point]:
        total = math.prod(len(options) for options in self._space.options.values())
        if total <= _MOST_LISTED:
            numbers = list(range(total))
            draws.shuffle(numbers)
        else:
            # More than are needed, because some may be excluded.
            numbers = draws.sample(range(total), min(total, max(_MOST_LISTED, 10 * trials)))
        found: list[Point] = []
        for number in numbers:
            if len(found) == trials:
                break
            point = self._numbered(number)
            if not self._space.is_excluded(point):
                found.append(point)
        return found

    def _numbered(self, number: int) -> Point:
        point = {}
        for axis, options in self._space.options.items():
            number, place = divmod(number, len(options))
            point[axis] = options[place]
        return point
