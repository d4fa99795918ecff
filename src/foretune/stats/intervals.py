"""The typical value of what was measured, with an interval that is honest about how the values came about.

Repeats in fresh processes are the unit where there are several: steps of one process share its memory layout, its
clocks and its neighbours, so a thousand of them are one sample of what another process would show. Within one run,
values count by how many independent ones they are worth. Nothing is dropped but a warm-up that was found, and how
much that was is part of the answer.
"""

import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from foretune.stats.steady import FEWEST_STEPS, Steady, find_steady
from foretune.stats.student import student_quantile

Statistic = Literal["median", "mean"]

ONE_RUN = "one run: the interval leaves out how processes differ; repeat in fresh processes"
_RARE_LONG_STEPS = "rare long steps: one run is too short to say how far its mean may be off"
_MOST_SKEWNESS = 2.0
"""Of values whose mean depends on a few of them; Student's interval then misses the truth too often."""
_MOST_DRIFTING_SHARE = 0.5
"""Where more of the runs drift, their summary says more about their length than about what was measured."""


@dataclass(frozen=True)
class RunSummary:
    """One run in one number."""

    value: float
    """The statistic of all values after the warm-up, whether steady or not."""
    steady: Steady
    num_values: int
    """Values after the warm-up: those the number is made of."""


@dataclass(frozen=True)
class Estimate:
    """A typical value with its interval, and what it was made of. None is "not known", never zero."""

    value: float | None
    low: float | None
    high: float | None
    confidence: float
    num_runs: int
    num_values: int
    """Values that count, over all runs."""
    num_dropped: int
    """Values left out, over all runs."""
    why_dropped: str | None
    """None where nothing was left out."""
    warnings: tuple[str, ...] = ()
    run_values: tuple[float, ...] = field(default=(), repr=False)
    """Each run in one number, in the order given."""


def summarise_run(times: Sequence[float], statistic: Statistic = "median") -> RunSummary:
    """The median or mean of a run's values after its warm-up."""
    assert times, "a run without a value has no summary"
    steady = find_steady(times)
    warm = times[steady.num_warmup :] or times[-1:]
    value = statistics.median(warm) if statistic == "median" else statistics.fmean(warm)
    return RunSummary(value, steady, len(warm))


def typical(
    groups_of_times: Sequence[Sequence[float]], *, statistic: Statistic = "median", confidence: float = 0.95
) -> Estimate:
    """The typical value of one or more runs, each a series of raw values (step times, warm-up included).

    A run that never becomes steady is not summarised on its own; beside others it counts, because to leave it out
    would be to choose, and a warning names it.
    """
    runs = [times for times in groups_of_times if times]
    if not runs:
        return Estimate(None, None, None, confidence, 0, 0, 0, None, ("there is no value",))
    summaries = [summarise_run(times, statistic) for times in runs]
    warnings = list(_steadiness_warnings(summaries))
    num_empty = len(groups_of_times) - len(runs)
    if num_empty:
        have = "1 run has" if num_empty == 1 else f"{num_empty} runs have"
        warnings.append(f"{have} no value and {'does' if num_empty == 1 else 'do'} not count")
    num_unsteady = sum(not summary.steady.is_steady for summary in summaries)
    value: float | None = None
    low: float | None = None
    high: float | None = None
    if len(runs) == 1:
        (times,), (summary,) = runs, summaries
        if summary.steady.is_steady:
            value, low, high = _of_one_run(times[summary.steady.num_warmup :], statistic, confidence)
            warnings.append(ONE_RUN if low is not None else _RARE_LONG_STEPS)
        elif len(times) < FEWEST_STEPS:
            value = summary.value
    elif num_unsteady <= _MOST_DRIFTING_SHARE * len(runs) or all(len(times) < FEWEST_STEPS for times in runs):
        value, low, high = mean_interval([summary.value for summary in summaries], confidence)
    num_dropped = sum(len(times) - summary.num_values for times, summary in zip(runs, summaries, strict=True))
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence=confidence,
        num_runs=len(runs),
        num_values=sum(summary.num_values for summary in summaries),
        num_dropped=num_dropped,
        why_dropped=_why_dropped([summary.steady.num_warmup for summary in summaries]),
        warnings=tuple(warnings),
        run_values=tuple(summary.value for summary in summaries),
    )


def mean_interval(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """The mean of independent values, and Student's interval around it."""
    mean = statistics.fmean(values)
    reach = student_quantile((1 + confidence) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - reach, mean + reach


def num_independent(values: Sequence[float]) -> float:
    """How many independent values a series with a memory is worth, for its mean.

    Correlations are summed in pairs of lags while a pair is positive (Geyer's initial sequence); each is corrected
    for what a short series hides of it.
    """
    num = len(values)
    mean = statistics.fmean(values)
    rest = [value - mean for value in values]
    power = sum(value * value for value in rest)
    if power <= 0:
        return float(num)
    inflation, lag = 1.0, 1
    while lag + 1 < num // 2:
        pair = sum(sum(map(operator.mul, rest, rest[step:])) / power * num / (num - step) for step in (lag, lag + 1))
        if pair <= 0:
            break
        inflation += 2 * pair
        lag += 2
    # The mean was estimated too, which makes every correlation look smaller by about inflation / num.
    inflation *= 1 + min(lag * inflation / num, 1.0)
    return max(num / inflation, 2.0)


def _of_one_run(
    values: Sequence[float], statistic: Statistic, confidence: float
) -> tuple[float, float | None, float | None]:
    if statistic == "mean":
        mean, spread = statistics.fmean(values), statistics.stdev(values)
        if sum((value - mean) ** 3 for value in values) > _MOST_SKEWNESS * len(values) * spread**3:
            return mean, None, None
        worth = num_independent(values)
        reach = student_quantile((1 + confidence) / 2, worth - 1) * spread / math.sqrt(worth)
        return mean, mean - reach, mean + reach
    # The median is where half of the values are below: its interval is that of a share of one half, whatever the
    # values' distribution, with as many independent values as the series of "below or not" is worth.
    median = statistics.median(values)
    worth = num_independent([1.0 if value <= median else 0.0 for value in values])
    reach_share = student_quantile((1 + confidence) / 2, worth - 1) * 0.5 / math.sqrt(worth)
    ordered = sorted(values)
    return median, _quantile(ordered, 0.5 - reach_share), _quantile(ordered, 0.5 + reach_share)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolated so that the k-th of n values stands at (k - 1/2) / n; beyond the ends, the ends."""
    place = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _steadiness_warnings(summaries: Sequence[RunSummary]) -> list[str]:
    """What is too short to be asked is distinguished from what was asked and does not settle."""
    short = [summary.steady.why for summary in summaries if summary.steady.is_short]
    unsteady = [s.steady.why for s in summaries if not s.steady.is_steady and not s.steady.is_short]
    if len(summaries) == 1:
        return [*short, *unsteady]
    kinds = (("too short", short), ("not steady", unsteady))
    return [f"{len(why)} of {len(summaries)} runs are {kind}; the first: {why[0]}" for kind, why in kinds if why]


def _why_dropped(num_warmups: Sequence[int]) -> str | None:
    if not any(num_warmups):
        return None
    least, most = min(num_warmups), max(num_warmups)
    span = "step" if most == least == 1 else f"{least} steps" if least == most else f"{least} to {most} steps"
    return f"warm-up: the first {span}" + (" of each run" if len(num_warmups) > 1 else "")
