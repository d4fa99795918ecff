"""Times measured on a grid of sizes, read between and beyond its points."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from itertools import product

Sizes = tuple[int, ...]


class Grid:
    """Seconds by sizes whose product is proportional to the work.

    Between points, the logarithm of time is linear in the logarithm of each size. Above the largest size of an axis,
    time grows with the work; below the smallest one, it stays: that is the kernel's fixed overhead. Corners that were
    not measured, because they would have taken too long, are reached from smaller ones at the same rate.
    """

    def __init__(self, seconds: Mapping[Sizes, float]) -> None:
        assert seconds, "a grid has points"
        self._known = dict(seconds)
        self._filled: dict[Sizes, float] = {}

    @cached_property
    def axes(self) -> tuple[Sizes, ...]:
        return tuple(tuple(sorted(set(values))) for values in zip(*self._known, strict=True))

    def at(self, sizes: tuple[float, ...]) -> float:
        """Seconds at these sizes, which need not be whole."""
        beyond = 1.0
        places: list[tuple[tuple[int, float], ...]] = []
        for size, axis in zip(sizes, self.axes, strict=True):
            if size <= axis[0]:
                places.append(((0, 1.0),))
            elif size >= axis[-1]:
                places.append(((len(axis) - 1, 1.0),))
                beyond *= size / axis[-1]
            else:
                low = bisect_right(axis, size) - 1
                share = math.log(size / axis[low]) / math.log(axis[low + 1] / axis[low])
                places.append(((low, 1 - share), (low + 1, share)) if share else ((low, 1.0),))
        logarithm = 0.0
        for corner in product(*places):
            weight = math.prod(share for _, share in corner)
            logarithm += weight * math.log(self._corner(tuple(index for index, _ in corner)))
        return beyond * math.exp(logarithm)

    def _corner(self, indices: Sizes) -> float:
        sizes = tuple(axis[index] for axis, index in zip(self.axes, indices, strict=True))
        known = self._known.get(sizes)
        if known is not None:
            return known
        if sizes not in self._filled:
            self._filled[sizes] = self._nearest(sizes)
        return self._filled[sizes]

    def _nearest(self, sizes: Sizes) -> float:
        """At the rate of the known point that is nearest by the ratios of its sizes; below all of them, its time."""

        def distance(other: Sizes) -> float:
            return sum(math.log(a / b) ** 2 for a, b in zip(sizes, other, strict=True))

        nearest = min(self._known, key=distance)
        return self._known[nearest] * max(1.0, math.prod(sizes) / math.prod(nearest))
