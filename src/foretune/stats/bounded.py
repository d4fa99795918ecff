"""Means and differences of few repeats whose values cannot be just anything: shares, scores from 0 to 1, times.

Student's interval knows no bounds. Of three runs that reach 0.9, 1.0 and 1.0 it reaches to 1.11, and near a bound,
where values are skewed, it holds the truth in 88 of 100 cases instead of 95. Cutting it off hides the first and leaves
the second. Here a mean between two bounds has Wilson's interval, as if it were the share of as many outcomes as its
spread over the repeats shows it to be worth, with Student's quantile because that number was estimated: it stays
inside, reaches farther towards the middle, and holds the truth in 93 to 95 of 100 cases, with 2 to 10 repeats.
"""

import math
import statistics
from collections.abc import Sequence
from statistics import NormalDist

from foretune.core.scores import UNBOUNDED, Bounds
from foretune.stats.intervals import mean_interval
from foretune.stats.student import student_quantile

Interval = tuple[float, float, float]
"""A value, and the ends of its interval."""


def bounded_mean(
    values: Sequence[float], confidence: float, bounds: Bounds = UNBOUNDED, *, num_outcomes: int = 0
) -> Interval:
    """The mean of independent values, two or more, with an interval inside the bounds.

    `num_outcomes`: where each value is a share of outcomes that are either so or not, how many there are in all. Such
    shares come in steps and may all be equal by chance; the interval is then at least that of one share of them all.
    """
    mean, low, high = mean_interval(values, confidence)
    least, width = bounds.least, bounds.width
    if not _are_inside(values, bounds):
        return mean, low, high
    if least is None or width is None:
        return mean, *_cut(low, high, bounds)
    share = min(max((mean - least) / width, 0.0), 1.0)
    error = statistics.stdev(values) / math.sqrt(len(values)) / width
    spread = share * (1 - share)
    low, high = wilson(share, error * error / spread if spread > 0 else 0.0, _student(confidence, len(values)))
    if num_outcomes:
        alone = wilson(share, 1 / num_outcomes, NormalDist().inv_cdf((1 + confidence) / 2))
        low, high = min(low, alone[0]), max(high, alone[1])
    return mean, min(least + width * low, mean), max(least + width * high, mean)


def bounded_difference(
    differences: Sequence[float],
    confidence: float,
    bounds: Bounds = UNBOUNDED,
    *,
    shares: Sequence[tuple[float, int]] = (),
) -> Interval:
    """The mean of paired differences, two or more, with Student's interval, no wider than two values can be apart.

    `shares`: where values are shares, those that vary between repeats, each with its number of outcomes. Differences
    of shares may all be equal by chance; the interval is then at least that of so many outcomes, with one more of
    either kind (Agresti and Caffo 2000).
    """
    mean, low, high = mean_interval(differences, confidence)
    if shares:
        imagined = ((share * num + 1) / (num + 2) for share, num in shares)
        errors = (one * (1 - one) / (num + 2) for one, (_, num) in zip(imagined, shares, strict=True))
        reach = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(sum(errors))
        low, high = min(low, mean - reach), max(high, mean + reach)
    width = bounds.width
    return (mean, low, high) if width is None else (mean, *_cut(low, high, Bounds(-width, width)))


def wilson(share: float, one_over_worth: float, quantile: float) -> tuple[float, float]:
    """Wilson's interval of a share. `one_over_worth`: one over how many independent outcomes it is worth."""
    square = quantile * quantile * one_over_worth
    centre = (share + square / 2) / (1 + square)
    reach = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def _are_inside(values: Sequence[float], bounds: Bounds) -> bool:
    """A file of another release may mean something else by a name."""
    least = -math.inf if bounds.least is None else bounds.least
    most = math.inf if bounds.most is None else bounds.most
    return all(least <= value <= most for value in values)


def _cut(low: float, high: float, bounds: Bounds) -> tuple[float, float]:
    low = low if bounds.least is None else max(low, bounds.least)
    return low, high if bounds.most is None else min(high, bounds.most)


def _student(confidence: float, num: int) -> float:
    return student_quantile((1 + confidence) / 2, num - 1)
