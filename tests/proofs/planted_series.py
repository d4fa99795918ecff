"""Series of step times with a known truth: what is typical, where the warm-up ends, whether they ever come to rest."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

KINDS = ("autocorrelated", "bimodal", "spiked")
WARMUPS = ("none", "first step", "slower steps", "fading")
UNRESTS = ("rising", "falling", "late change", "stairs", "wandering")


@dataclass(frozen=True)
class Source:
    """What step times of one kind come from, around a level of 1."""

    kind: str
    noise: float
    """Standard deviation of single values around the level."""
    correlation: float
    share: float
    """Of values that are slow, or spikes."""
    slow: float
    """How many times as long a value of the second mode is."""

    @classmethod
    def drawn(cls, kind: str, draw: random.Random) -> "Source":
        correlation = draw.uniform(0.3, 0.7) if kind == "autocorrelated" else 0.0
        share = {"bimodal": draw.uniform(0.1, 0.4), "spiked": draw.uniform(0.02, 0.06)}.get(kind, 0.0)
        return cls(kind, draw.uniform(0.01, 0.05), correlation, share, draw.uniform(1.1, 1.6))

    def series(self, num: int, draw: random.Random) -> list[float]:
        values, wander = [], draw.gauss(0, 1)
        for _ in range(num):
            wander = self.correlation * wander + math.sqrt(1 - self.correlation**2) * draw.gauss(0, 1)
            value = 1 + self.noise * wander
            if draw.random() < self.share:
                value *= self.slow if self.kind == "bimodal" else draw.uniform(2, 10)
            values.append(value)
        return values

    @property
    def median(self) -> float:
        """Where half of the distribution is below; spikes are above whatever is near it."""
        usual, second = NormalDist(1, self.noise), NormalDist(self.slow, self.slow * self.noise)
        low, high = 0.5, 3.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            below = (1 - self.share) * usual.cdf(middle)
            below += self.share * second.cdf(middle) if self.kind == "bimodal" else 0.0
            low, high = (middle, high) if below < 0.5 else (low, middle)
        return low

    @property
    def deviation(self) -> float:
        """Of single values, spikes apart."""
        modes = self.share * (1 - self.share) * (self.slow - 1) ** 2 if self.kind == "bimodal" else 0.0
        return math.sqrt(self.noise**2 + modes)

    def with_warmup(self, warmup: str, num: int, draw: random.Random) -> tuple[list[float], int]:
        """A series after a warm-up, and how many steps that takes."""
        values = self.series(num, draw)
        if warmup == "none":
            return values, 0
        if warmup == "first step":
            return [values[0] * draw.uniform(3, 50), *values[1:]], 1
        if warmup == "slower steps":
            num_slow, factor = draw.randrange(2, num // 3), draw.uniform(1.3, 4)
            return [value * factor if i < num_slow else value for i, value in enumerate(values)], num_slow
        assert warmup == "fading"
        size, rate = draw.uniform(0.5, 5), draw.uniform(0.3, 0.75)
        # Over when what is left of it is lost in the noise, or is nothing that matters.
        num_fading = max(0, math.ceil(math.log(max(self.deviation, 0.03) / size) / math.log(rate)))
        return [value * (1 + size * rate**i) for i, value in enumerate(values)], num_fading


def never_steady(series: Sequence[float], unrest: str, draw: random.Random) -> list[float]:
    """The series on a machine that does not come to rest."""
    num = len(series)
    if unrest in {"rising", "falling"}:
        size = draw.uniform(0.2, 0.6) if unrest == "rising" else -draw.uniform(0.2, 0.4)
        return [value * (1 + size * i / num) for i, value in enumerate(series)]
    if unrest == "late change":
        factor, place = draw.choice((0.7, 1.3, 1.5)), draw.randrange(int(0.6 * num), int(0.9 * num))
        return [value * factor if i > place else value for i, value in enumerate(series)]
    if unrest == "stairs":
        num_stairs = draw.randrange(4, 8)
        return [value * (1 + 0.12 * (i * num_stairs // num)) for i, value in enumerate(series)]
    assert unrest == "wandering"
    level, wandering = 1.0, []
    for value in series:
        level *= math.exp(draw.gauss(0, 0.05))
        wandering.append(value * level)
    return wandering


def repeated(source: Source, num_runs: int, num: int, draw: random.Random, spread: float = 0.03) -> list[list[float]]:
    """Fresh processes of one thing: each has a level of its own around the common one."""
    return [[value * factor for value in source.series(num, draw)] for factor in _levels(num_runs, spread, draw)]


def _levels(num: int, spread: float, draw: random.Random) -> list[float]:
    return [draw.gauss(1, spread) for _ in range(num)]
