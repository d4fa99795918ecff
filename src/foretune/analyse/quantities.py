"""What runs can be compared in: each quantity says how it is read off a set of runs."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from foretune.analyse.run_data import RunData
from foretune.core.scores import NEVER_NEGATIVE
from foretune.stats.bounded import bounded_mean
from foretune.stats.intervals import Estimate, Statistic, typical
from foretune.stats.speed import rate_of

STEP_TIME = "step time"
SPEED = "speed"
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Quantity:
    """Something that both of two sets of runs may have measured."""

    name: str
    unit: str
    estimate: Callable[[Sequence[RunData]], Estimate | None]
    """None where not every run has measured it."""
    is_speed: bool
    """Whether it can be compared where the questions differ; a loss cannot."""


def _of_steps(statistic: Statistic) -> Callable[[Sequence[RunData]], Estimate | None]:
    def estimate(runs: Sequence[RunData]) -> Estimate | None:
        times_s = [run.speed_times_s for run in runs]
        if not all(times_s):
            return None
        found = typical(times_s, statistic=statistic, confidence=_CONFIDENCE)
        # An interval may reach below zero, a time cannot.
        return found if found.low is None else replace(found, low=max(found.low, 0.0))

    return estimate


def _rates(runs: Sequence[RunData]) -> Estimate | None:
    """All samples of the steady steps over all of their time, so that slow steps count with their whole length."""
    times = _of_steps("mean")(runs)
    if times is None:
        return None
    rates = tuple(run.samples_per_step / value for run, value in zip(runs, times.run_values, strict=True) if value > 0)
    rate = rate_of(times, statistics.fmean(run.samples_per_step for run in runs))
    value, low, high = rate or (None, None, None)
    return replace(times, value=value, low=low, high=high, run_values=rates)


def one_number_each(values: Sequence[float | None]) -> Estimate | None:
    """For what a run has one number of; None where one of them does not know it."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or len(known) < len(values):
        return None
    value, low, high = statistics.fmean(known), None, None
    if len(known) > 1:
        value, low, high = bounded_mean(known, _CONFIDENCE, NEVER_NEGATIVE)
    return Estimate(value, low, high, _CONFIDENCE, len(known), len(known), 0, None, run_values=tuple(known))


def _one_a_run(of: Callable[[RunData], float | None]) -> Callable[[Sequence[RunData]], Estimate | None]:
    return lambda runs: one_number_each([of(run) for run in runs])


def _device_bytes(run: RunData) -> float | None:
    return None if run.record is None else run.record.measured.peak_device_bytes


def _host_bytes(run: RunData) -> float | None:
    return None if run.record is None else run.record.measured.peak_host_bytes


def _held_out_loss(run: RunData) -> float | None:
    losses = () if run.record is None else run.record.measured.held_out_losses
    return losses[-1][1] if losses else None


def _last_loss(run: RunData) -> float | None:
    return run.losses[-1] if run.losses else None


QUANTITIES = (
    Quantity(STEP_TIME, "s", _of_steps("median"), is_speed=True),
    Quantity(SPEED, "samples/s", _rates, is_speed=True),
    Quantity("peak device memory", "bytes", _one_a_run(_device_bytes), is_speed=True),
    Quantity("peak process memory", "bytes", _one_a_run(_host_bytes), is_speed=True),
    Quantity("held-out loss", "", _one_a_run(_held_out_loss), is_speed=False),
    Quantity("last loss", "", _one_a_run(_last_loss), is_speed=False),
)
