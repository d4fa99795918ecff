"""Whether a curve still falls: an answer with an interval, and a rule that says when more steps no longer show.

Two stretches of a curve are compared: its last third, and the third before it. "No difference" alone would end a noisy
training early, because noise hides what is still gained. So the rule asks the other way round: it stops where what is
still gained is shown to be less than what would count. Looks are spread over the curve, and each of them has its
share of the error that is allowed in all.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foretune.stats.intervals import num_independent
from foretune.stats.student import student_quantile

LEAST_GAIN = 0.01
"""Share of the loss: what is gained from one third to the next counts only from here on."""
ALLOWED_ERROR = 0.05
"""How often a curve that still falls by `LEAST_GAIN` or more may be called settled, over all looks."""
FEWEST_VALUES = 12
"""Of curves that repeat each other: four in each third. How the curves differ tells their noise."""
FEWEST_OF_ONE = 60
"""Of one curve alone: fewer values do not tell how much each of them resembles the one before."""
_LOOKS_APART = 1.5
_CONFIDENCE = 0.95
_THIRDS = 3
_FEWEST_BLOCKS, _MOST_BLOCKS = 5, 10
_SHORTEST_BLOCK = 4

_Noise = tuple[tuple[float, float], tuple[float, float]]
Answer = Literal["still falling", "settled", "rising", "not decided"]


@dataclass(frozen=True)
class Gain:
    """What the last third of a curve gained over the third before it, as a share of the loss there."""

    share: float
    low: float
    high: float
    """The 95 % interval of the share."""
    num_values: int
    """Of each curve, to the end of the last third."""
    answer: Answer
    num_needed: int | None = None
    """About how many values would decide; None where they do already."""


@dataclass(frozen=True)
class Settled:
    """When a curve settled, if it did."""

    at: int | None
    """Values seen when the rule stopped; None where it never did."""
    last: Gain | None
    """What the whole curve says at its end; None where there are too few values."""


def gain(curves: Sequence[Sequence[float]], *, least: float = LEAST_GAIN, error: float = ALLOWED_ERROR) -> Gain | None:
    """What is still gained at the end of curves that repeat one thing; None where they are too short to say.

    Noise is what is left around a straight line in each third, of single values that count by how many independent ones
    they are worth and of the means of blocks of them, whichever is more; of short curves, how their gains differ.
    """
    length = min((len(curve) for curve in curves), default=0)
    if length < fewest_values(len(curves)):
        return None
    third = length // _THIRDS
    shares: list[float] = []
    noises: list[_Noise] = []
    for curve in curves:
        before, after = curve[length - 2 * third : length - third], curve[length - third : length]
        level = statistics.fmean(before)
        if level <= 0 or not all(map(math.isfinite, (*before, *after))):
            return None
        shares.append((level - statistics.fmean(after)) / level)
        noises += [_noise([value / level for value in part]) for part in (before, after)]
    spreads = [_together(ways, len(curves)) for ways in zip(*noises, strict=True)]
    if length < FEWEST_OF_ONE:
        spreads.append((statistics.stdev(shares) / math.sqrt(len(shares)), len(shares) - 1.0))
    share = statistics.fmean(shares)
    reach = max(student_quantile((1 + _CONFIDENCE) / 2, df) * spread for spread, df in spreads)
    most = share + max(student_quantile(1 - error, df) * spread for spread, df in spreads)
    answer: Answer = "not decided"
    if most < least:
        answer = "rising" if share + reach < 0 else "settled"
    elif share - reach > 0:
        answer = "still falling"
    needed = None
    if answer == "not decided":
        # The error falls with the root of the length; what is gained itself is taken to stay.
        missing = (most - share) / max(least - share, least / 10)
        needed = math.ceil(length * max(missing, 1.0) ** 2) if share < least else math.ceil(length * 1.5)
    return Gain(share, share - reach, share + reach, length, answer, needed)


def settling(curves: Sequence[Sequence[float]], *, least: float = LEAST_GAIN, error: float = ALLOWED_ERROR) -> Settled:
    """When more values no longer showed: looked at ever later, each look with its share of the error."""
    length = min((len(curve) for curve in curves), default=0)
    at: int | None = None
    looks = _looks(FEWEST_OF_ONE if length >= FEWEST_OF_ONE else fewest_values(len(curves)), length)
    for look in looks:
        found = gain([curve[:look] for curve in curves], least=least, error=error / len(looks))
        if found is not None and found.answer in ("settled", "rising"):
            at = look
            break
    return Settled(at, gain(curves, least=least, error=error))


def fewest_values(num_curves: int) -> int:
    """How long curves must be to be asked, by how many there are."""
    return FEWEST_OF_ONE if num_curves == 1 else FEWEST_VALUES


def _looks(first: int, length: int) -> list[int]:
    looks, at = [], float(first)
    while at <= length:
        looks.append(int(at))
        at *= _LOOKS_APART
    if looks and looks[-1] < length:
        looks.append(length)
    return looks


def _noise(values: Sequence[float]) -> "_Noise":
    """Variance of the mean, and the degrees of freedom it is known with: from single values, and from blocks."""
    rest = _around_a_line(values)
    worth = num_independent(rest)
    single = (sum(value * value for value in rest) / max(1, len(rest) - 2) / worth, max(1.0, worth - 2))
    num_blocks = min(_MOST_BLOCKS, len(values) // _SHORTEST_BLOCK)
    if num_blocks < _FEWEST_BLOCKS:
        return single, single
    # Neighbours that resemble each other are in one block, which few values cannot show otherwise.
    width = len(values) // num_blocks
    begin = len(values) - width * num_blocks
    means = [statistics.fmean(values[at : at + width]) for at in range(begin, len(values), width)]
    rest = _around_a_line(means)
    degrees = num_blocks - 2
    return single, (sum(value * value for value in rest) / degrees / num_blocks, float(degrees))


def _around_a_line(values: Sequence[float]) -> list[float]:
    middle, mean = (len(values) - 1) / 2, statistics.fmean(values)
    places = [place - middle for place in range(len(values))]
    slope = sum(place * value for place, value in zip(places, values, strict=True)) / sum(p * p for p in places)
    return [value - mean - slope * place for place, value in zip(places, values, strict=True)]


def _together(noises: Sequence[tuple[float, float]], num_curves: int) -> tuple[float, float]:
    """Standard error of the mean gain of the curves, and its degrees of freedom: whole, to be found again."""
    error = math.sqrt(sum(variance for variance, _ in noises)) / num_curves
    return error, float(max(1, int(sum(degrees for _, degrees in noises))))
