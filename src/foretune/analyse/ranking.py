"""Which of several is best, if any is: the highest mean of twenty like things is always somebody's.

Two questions are asked, each with a chance of at most `alpha` to be answered wrongly, however many are compared.

Is the leader best? It is called so where a two-sided test at `alpha` shows it to be better than every other one. For
two that are alike that is wrong at the rate `alpha`; with more of them the leader is followed more closely, so it is
rarer (Gutmann and Maymin, Annals of Statistics 1987, for equal spreads; simulated for unequal ones in the proofs).

Who may be the best? All that the leader is not shown to be ahead of when each of them is asked at
`alpha / number of configurations`: a leader was chosen for being ahead, so the others are not put aside lightly.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from foretune.stats.deciding import welch_spread
from foretune.stats.student import student_quantile

ALPHA = 0.05
FEWEST_RUNS = 3
"""Of each configuration, before any difference is claimed. Two runs that happen to agree look like no spread at all."""


@dataclass(frozen=True)
class Margin:
    """How far the leader is ahead of another one, in the unit of the values; positive is better."""

    ahead_of: int
    value: float
    low: float | None
    """None where there are too few runs, or no spread, to tell from."""
    high: float | None
    confidence: float
    is_behind: bool
    """Whether the other one can be put aside, with all of these comparisons allowed for."""

    @property
    def is_shown(self) -> bool:
        return self.low is not None and self.low > 0


@dataclass(frozen=True)
class Ranking:
    """The answer, with what it rests on. Numbers are positions in what was given."""

    best: int | None
    """None where no best is shown."""
    leader: int | None
    """The best mean; None where there is no value at all."""
    tied: tuple[int, ...]
    """Those that may be the best: the leader, and all it is not shown to be better than."""
    margins: tuple[Margin, ...]
    """Of the leader over each other one that has values, the smallest lead first."""
    alpha: float

    @property
    def narrowest(self) -> Margin | None:
        """The lead over the nearest rival."""
        return min(self.margins, key=lambda one: math.inf if one.low is None else one.low, default=None)


def rank(groups: Sequence[Sequence[float]], *, higher_is_better: bool, alpha: float = ALPHA) -> Ranking:
    """Ranks groups of repeats, each repeat one number. Those without a value take no part."""
    sign = 1.0 if higher_is_better else -1.0
    values = [[sign * value for value in group if math.isfinite(value)] for group in groups]
    present = [number for number, group in enumerate(values) if group]
    if not present:
        return Ranking(None, None, (), (), alpha)
    leader = max(present, key=lambda number: (statistics.fmean(values[number]), -number))
    if len(present) == 1:
        # Nobody to be better than.
        return Ranking(None, leader, (leader,), (), alpha)
    floor = _shared_spread([values[number] for number in present])
    rivals = [number for number in present if number != leader]
    margins = [_margin(values[leader], values[other], other, alpha, len(present), floor) for other in rivals]
    margins.sort(key=lambda one: (one.value, one.ahead_of))
    if all(one.is_shown for one in margins):
        return Ranking(leader, leader, (leader,), tuple(margins), alpha)
    tied = tuple(sorted([leader, *(one.ahead_of for one in margins if not one.is_behind)]))
    return Ranking(None, leader, tied, tuple(margins), alpha)


def _margin(a: Sequence[float], b: Sequence[float], other: int, alpha: float, num: int, floor: float) -> Margin:
    value = statistics.fmean(a) - statistics.fmean(b)
    found = welch_spread(a, b)
    if found is None or min(len(a), len(b)) < FEWEST_RUNS:
        return Margin(other, value, None, None, 1 - alpha, is_behind=False)
    error, df = found
    if statistics.variance(a) <= 0 or statistics.variance(b) <= 0:
        # Equal repeats seldom prove that there is no spread: scores come in steps. What all have in common counts.
        error = max(error, floor * math.sqrt(1 / len(a) + 1 / len(b)))
        df = min(len(a), len(b)) - 1.0
    if error <= 0:
        return Margin(other, value, None, None, 1 - alpha, is_behind=False)
    # Rounded down, which is the careful side: quantiles are then looked up instead of computed for each pair.
    df = max(math.floor(df * 10) / 10, 1.0)
    reach = student_quantile(1 - alpha / 2, df) * error
    is_behind = value > student_quantile(1 - alpha / num, df) * error
    return Margin(other, value, value - reach, value + reach, 1 - alpha, is_behind)


def _shared_spread(groups: Sequence[Sequence[float]]) -> float:
    """The standard deviation within groups, over all that have repeats; 0 where none has any."""
    num = sum(len(group) - 1 for group in groups)
    if not num:
        return 0.0
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups if len(group) > 1)
    return math.sqrt(squares / num)
