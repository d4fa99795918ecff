"""Loss curves of runs that repeat one thing, with bands over seeds, and when more steps no longer showed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from foretune.analyse.run_data import RunData
from foretune.core.scores import NEVER_NEGATIVE
from foretune.core.values import Finding
from foretune.stats.bounded import bounded_mean
from foretune.stats.settling import LEAST_GAIN, Gain, fewest_values, settling

CurveKind = Literal["held-out", "training"]
NUM_POINTS = 150
"""Most points of a training loss; of longer runs each is a stretch of steps."""
_CONFIDENCE = 0.95
_SMOOTHED_SHARE = 20
"""The moving average reaches over a twentieth of the steps."""
_FEWEST_SMOOTHED = 3


@dataclass(frozen=True)
class CurvePoint:
    """One place of a curve."""

    step: int
    """Steps done."""
    value: float
    """The mean over the runs; of a smoothed curve that of their moving averages."""
    low: float | None
    """Of the 95 % interval of that mean over seeds; None where one run has no spread to show."""
    high: float | None
    num_runs: int
    raw: float | None = None
    """The mean over the runs before smoothing; None where the curve is not smoothed."""


@dataclass(frozen=True)
class Curve:
    """The loss of one configuration against its steps."""

    label: str
    kind: CurveKind
    points: tuple[CurvePoint, ...]
    run_ids: tuple[str, ...]
    num_steps_per_point: int = 1
    """Steps of a point: its raw value is their mean, and its smoothed value that of the last of them."""
    num_smoothed_steps: int = 1
    """Each new step has the weight 1 / num_smoothed_steps in the exponential moving average; 1 is not smoothed."""


@dataclass(frozen=True)
class Convergence:
    """What one configuration's curve says about more steps."""

    label: str
    kind: CurveKind
    """Which loss was asked: the held-out one where it was measured often enough, because its noise is fixed."""
    settled_at_step: int | None
    """From here on more steps no longer showed; None where that did not happen."""
    last: Gain | None
    """What the last third of the steps gained over the third before it."""
    final: float | None
    """The mean loss of the last third."""
    num_steps: int
    run_ids: tuple[str, ...]


def curves(groups: Mapping[str, Sequence[RunData]]) -> tuple[Curve, ...]:
    """Held-out and smoothed training loss of each group of runs that differ in their seed only.

    Runs of different length are reported as far as all of them go; runs without a step are left out.
    """
    found = []
    for label, runs in groups.items():
        with_losses = [run for run in runs if run.losses]
        if with_losses:
            ids = tuple(run.run_id for run in with_losses)
            held_out = _held_out_points(with_losses)
            if held_out:
                found.append(Curve(label, "held-out", held_out, ids))
            smoothed = _smoothed(label, with_losses)
            if smoothed is not None:
                found.append(smoothed)
    return tuple(found)


def convergence(label: str, runs: Sequence[RunData], *, least: float = LEAST_GAIN) -> Convergence:
    """Whether and when more steps no longer showed in runs that differ in their seed only."""
    with_losses = [run for run in runs if run.losses]
    steps, series, kind = _asked_series(with_losses)
    found = settling(series, least=least)
    third = len(steps) // 3
    final = statistics.fmean(statistics.fmean(values[-third:]) for values in series) if third else None
    return Convergence(
        label=label,
        kind=kind,
        settled_at_step=None if found.at is None else steps[found.at - 1],
        last=found.last,
        final=final,
        num_steps=min((len(run.losses) for run in with_losses), default=0),
        run_ids=tuple(run.run_id for run in with_losses),
    )


def convergence_finding(found: Convergence, *, least: float = LEAST_GAIN) -> Finding:
    """When to stop, in one sentence, with the interval it rests on."""
    seeds = "1 seed" if len(found.run_ids) == 1 else f"{len(found.run_ids)} seeds"
    caveat = "One seed: another may settle elsewhere." if len(found.run_ids) == 1 else None
    if found.last is None:
        sentence = f"{found.label}: too few values of the {found.kind} loss to say whether it still falls."
        return Finding(sentence=sentence, evidence=found.run_ids, caveat=caveat)
    last = found.last
    gained = f"{last.share:+.1%} ({last.low:+.1%} to {last.high:+.1%})"
    basis = f"the last third of {found.num_steps} steps gained {gained} of the {found.kind} loss, {seeds}"
    if found.settled_at_step is not None and last.answer == "still falling":
        said = f"called settled after {found.settled_at_step} steps, though it fell on"
    elif found.settled_at_step is not None:
        said = f"after {found.settled_at_step} steps more of them no longer showed"
    elif last.answer == "still falling":
        said = f"still falling after {found.num_steps} steps: more would show"
    else:
        more = f"; about {last.num_needed} values would show it" if last.num_needed else ""
        said = f"not decided after {found.num_steps} steps whether more would show{more}"
    sentence = f"{found.label}: {said} ({basis}; less than {least:.0%} would not count)."
    return Finding(sentence=sentence, evidence=found.run_ids, caveat=caveat)


def _asked_series(runs: Sequence[RunData]) -> tuple[list[int], list[list[float]], CurveKind]:
    held_out = [dict(run.held_out_losses) for run in runs]
    # The first is the untrained model's, which belongs to no third of the training.
    common = sorted(step for step in set.intersection(*map(set, held_out)) if step) if held_out else []
    if len(common) >= fewest_values(len(runs)):
        return common, [[losses[step] for step in common] for losses in held_out], "held-out"
    length = min((len(run.losses) for run in runs), default=0)
    return list(range(1, length + 1)), [list(run.losses[:length]) for run in runs], "training"


def _held_out_points(runs: Sequence[RunData]) -> tuple[CurvePoint, ...]:
    held_out = [dict(run.held_out_losses) for run in runs]
    common = sorted(set.intersection(*map(set, held_out)))
    return tuple(_point(step, [losses[step] for losses in held_out]) for step in common)


def _smoothed(label: str, runs: Sequence[RunData]) -> Curve | None:
    length = min(len(run.losses) for run in runs)
    width = max(1, math.ceil(length / NUM_POINTS))
    reach = max(_FEWEST_SMOOTHED, length // _SMOOTHED_SHARE)
    averages = [moving_average(run.losses[:length], reach) for run in runs]
    points = tuple(
        replace(
            _point(end, [average[end - 1] for average in averages]),
            raw=statistics.fmean(statistics.fmean(run.losses[end - width : end]) for run in runs),
        )
        for end in range(width, length + 1, width)
    )
    return Curve(label, "training", points, tuple(run.run_id for run in runs), width, reach) if points else None


def moving_average(values: Sequence[float], reach: int) -> list[float]:
    """The exponential moving average in which a new value has the weight 1 / reach, without a bias at the start."""
    averages, total, weight = [], 0.0, 0.0
    for value in values:
        total += (value - total) / reach
        weight += (1 - weight) / reach
        averages.append(total / weight)
    return averages


def _point(step: int, values: Sequence[float]) -> CurvePoint:
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return CurvePoint(step, statistics.fmean(values), None, None, len(values))
    value, low, high = bounded_mean(values, _CONFIDENCE, NEVER_NEGATIVE)
    return CurvePoint(step, value, low, high, len(values))
