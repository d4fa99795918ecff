"""Where numbers stand on an axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


def tick_step(span: float, most_ticks: int) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(span / most_ticks))
    return next(step * power for step in (1, 2, 5, 10) if span / (step * power) <= most_ticks)


@dataclass(frozen=True)
class Scale:
    """A straight line from values to pixels."""

    low: float
    high: float
    from_px: float
    to_px: float

    @classmethod
    def around(cls, values: Sequence[float], from_px: float, to_px: float, room: float = 0.08) -> "Scale":
        """A scale that holds all values with some room at both ends."""
        low, high = min(values), max(values)
        spare = (high - low) * room or abs(high) * 0.1 or 1.0
        # What is never negative does not begin below zero.
        return cls(max(low - spare, 0.0) if low >= 0 else low - spare, high + spare, from_px, to_px)

    def px(self, value: float) -> float:
        return self.from_px + (value - self.low) / (self.high - self.low) * (self.to_px - self.from_px)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Round values within the scale, with their text."""
        step = tick_step(self.high - self.low, most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        digits = max(0, -math.floor(math.log10(step)))
        return [(number * step, f"{number * step + 0.0:,.{digits}f}") for number in range(first, last + 1)]
