"""Means and differences of values that come in clusters: several seeds of one prompt are not several prompts.

A cluster is one value, the mean of what is in it, and each cluster counts alike. What the intervals speak of is
therefore other clusters of the same kind, such as other prompts, not other seeds of these.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foretune.core.scores import UNBOUNDED, Bounds
from foretune.stats.bounded import bounded_difference, bounded_mean, wilson
from foretune.stats.student import student_quantile

Groups = Sequence[Sequence[float]]
Direction = Literal["higher", "lower", "no difference shown", "inconclusive"]

_FEWEST_CLUSTERS = 2
# Two imagined pairs, one up and one down by all there is (Bonett and Price 2012): without them, shares that are
# equal in every pair would seem to be known exactly.
_IMAGINED_PAIRS = 2


@dataclass(frozen=True)
class Clustered:
    """A mean over clusters, or a difference of two, with its interval; None is "not known"."""

    value: float
    low: float | None
    high: float | None
    num_clusters: int


def cluster_means(groups: Groups) -> list[float]:
    """One number for each cluster."""
    return [statistics.fmean(group) for group in groups]


def clustered_mean(groups: Groups, confidence: float, bounds: Bounds = UNBOUNDED) -> Clustered:
    """The mean over clusters with Student's interval, or one that stays within bounds."""
    means = cluster_means(groups)
    if len(means) < _FEWEST_CLUSTERS:
        return Clustered(statistics.fmean(means), None, None, len(means))
    return Clustered(*bounded_mean(means, confidence, bounds), len(means))


def clustered_share(groups: Groups, confidence: float) -> Clustered:
    """The mean of values in [0, 1] with an interval that stays inside and has a width even where all are equal.

    Wilson's interval, with as many independent values as the spread of the clusters shows that there are: at least one
    a cluster less one, at most all.
    """
    means = cluster_means(groups)
    value, num = statistics.fmean(means), len(means)
    if num < _FEWEST_CLUSTERS:
        return Clustered(value, None, None, num)
    error = statistics.variance(means) / num
    worth = min(value * (1 - value) / error, float(sum(map(len, groups)))) if error > 0 else float(num)
    # How many values they are worth was estimated too, from few clusters: Student's quantile allows for it.
    low, high = wilson(value, 1 / worth, _quantile(confidence, num))
    return Clustered(value, low, high, num)


def paired_difference(
    a: Groups, b: Groups, confidence: float, bounds: Bounds = UNBOUNDED, *, is_share: bool = False
) -> Clustered:
    """The mean of b minus a over clusters that both have, with Student's interval over the pairs.

    `is_share`: values lie in [0, 1], and may all be equal by chance.
    """
    differences = [after - before for before, after in zip(cluster_means(a), cluster_means(b), strict=True)]
    value, num = statistics.fmean(differences), len(differences)
    if num < _FEWEST_CLUSTERS:
        return Clustered(value, None, None, num)
    if not is_share:
        return Clustered(*bounded_difference(differences, confidence, bounds), num)
    imagined = [*differences, 1.0, -1.0]
    centre = statistics.fmean(imagined)
    error = statistics.pstdev(imagined) / math.sqrt(num + _IMAGINED_PAIRS)
    reach = _quantile(confidence, num) * error
    # The interval must hold what was measured, though its centre is drawn towards nothing.
    low, high = max(-1.0, min(centre - reach, value)), min(1.0, max(centre + reach, value))
    return Clustered(value, low, high, num)


def direction(difference: Clustered, smallest_difference: float) -> Direction:
    """What a difference shows. "No difference shown" is said only where one of that size would have been."""
    if difference.low is None or difference.high is None:
        return "inconclusive"
    if difference.low > 0:
        return "higher"
    if difference.high < 0:
        return "lower"
    is_narrow = max(-difference.low, difference.high) <= smallest_difference
    return "no difference shown" if is_narrow else "inconclusive"


def shared_confidence(confidence: float, num_comparisons: int) -> float:
    """The confidence of each of several intervals that hold all at once with the given one (Bonferroni)."""
    return 1 - (1 - confidence) / max(1, num_comparisons)


def _quantile(confidence: float, num: int) -> float:
    return student_quantile((1 + confidence) / 2, num - 1)
