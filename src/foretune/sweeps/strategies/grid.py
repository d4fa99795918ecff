"""Every combination."""

from collections.abc import Callable, Sequence

from foretune.choices.sweep import combinations
from foretune.sweeps.strategies.seam import Point, PointResult, SearchSpace


class GridSearch:
    """All combinations at once, in the order of the file."""

    def __init__(self, space: SearchSpace) -> None:
        self._points: list[Point] = [
            point
            for point in combinations({axis: list(options) for axis, options in space.options.items()})
            if not space.is_excluded(point)
        ]
        self.num_planned: int | None = len(self._points)

    def propose(self, results: Sequence[PointResult], num_free: Callable[[], int | None]) -> list[Point]:
        points, self._points = self._points, []
        return points
