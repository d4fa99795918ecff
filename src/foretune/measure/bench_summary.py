"""Repeats in a few numbers, each with its interval and what it was made of."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foretune.core.units import duration_text
from foretune.measure.step_flops import StepFlops
from foretune.stats.intervals import Estimate, typical
from foretune.stats.speed import Rate, rate_of
from foretune.stats.utilisation import ImpossibleSpeed, utilisation

_LONG_STEPS = 1.1
"""Times the median that the mean may be before a warning is given."""


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """One repeat: its raw step times, and what its record says."""

    run: str
    step_times_s: tuple[float, ...]
    samples_per_step: int
    measured: dict[str, Any]
    """`Measured` of the run's record."""
    peak_flops_per_s: float | None
    peak_source: str | None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Repeats of one thing. None is "not measured", never zero."""

    step_s: Estimate
    """The typical step: of each repeat the median."""
    mean_step_s: Estimate
    """All time over all steps, of each repeat: what speeds are made of, so that long steps count with their length."""
    samples_per_step: int
    model_flops: float | None
    """Of one step: what the model needs."""
    hardware_flops: float | None
    """Of one step: what is computed, with what is recomputed."""
    peak_flops_per_s: float | None
    peak_source: str | None
    model_utilisation: float | None
    hardware_utilisation: float | None
    peak_device_bytes: int | None
    """The most of all repeats, as all that follow."""
    peak_reserved_bytes: int | None
    peak_host_bytes: int | None
    energy_per_sample_j: float | None
    """Mean over the repeats, warm-up included: sensors are too slow to tell steps apart."""
    mean_power_w: float | None
    compile_s: float | None
    """Mean over the repeats."""
    repeats: tuple[Repeat, ...]
    warnings: tuple[str, ...]

    @property
    def iterations_per_s(self) -> Rate | None:
        """Optimizer steps a second, with the interval."""
        return rate_of(self.mean_step_s, 1)

    @property
    def samples_per_s(self) -> Rate | None:
        return rate_of(self.mean_step_s, self.samples_per_step)


def summary_of(repeats: Sequence[Repeat], flops: StepFlops | None) -> Series:
    """The repeats of one thing as one."""
    times_s = [repeat.step_times_s for repeat in repeats]
    step_s, mean_step_s = typical(times_s), typical(times_s, statistic="mean")
    samples_per_step = repeats[0].samples_per_step
    fastest = max(repeats, key=lambda repeat: repeat.peak_flops_per_s or 0.0)
    peak, source = fastest.peak_flops_per_s, fastest.peak_source
    model_share, hardware_share, impossible = _shares(flops, step_s.value, peak, source or "")
    energy_j = _mean(repeats, "energy_j")
    return Series(
        step_s=step_s,
        mean_step_s=mean_step_s,
        samples_per_step=samples_per_step,
        model_flops=None if flops is None else flops.model,
        hardware_flops=None if flops is None else flops.hardware,
        peak_flops_per_s=peak,
        peak_source=source,
        model_utilisation=model_share,
        hardware_utilisation=hardware_share,
        peak_device_bytes=_most(repeats, "peak_device_bytes"),
        peak_reserved_bytes=_most(repeats, "peak_reserved_bytes"),
        peak_host_bytes=_most(repeats, "peak_host_bytes"),
        energy_per_sample_j=(
            None if energy_j is None else energy_j / (len(repeats[0].step_times_s) * samples_per_step)
        ),
        mean_power_w=_mean(repeats, "mean_power_w"),
        compile_s=_mean(repeats, "compile_s"),
        repeats=tuple(repeats),
        warnings=tuple(
            dict.fromkeys((*step_s.warnings, *mean_step_s.warnings, *_long_steps(step_s, mean_step_s), *impossible))
        ),
    )


def _shares(
    flops: StepFlops | None, step_s: float | None, peak_flops_per_s: float | None, source: str
) -> tuple[float | None, float | None, list[str]]:
    """Utilisation by the model's FLOPs and by all; both None, with the reason, if one is impossible."""
    if flops is None or step_s is None or peak_flops_per_s is None:
        return None, None, []
    try:
        model, hardware = (
            utilisation(count, step_s, peak_flops_per_s, source) for count in (flops.model, flops.hardware)
        )
    except ImpossibleSpeed as error:
        return None, None, [f"Utilisation is not known: {error}"]
    return model, hardware, []


def _long_steps(step_s: Estimate, mean_step_s: Estimate) -> list[str]:
    """A word where speed and typical step tell different stories."""
    if step_s.value is None or mean_step_s.value is None or mean_step_s.value <= _LONG_STEPS * step_s.value:
        return []
    average, median = duration_text(mean_step_s.value), duration_text(step_s.value)
    return [
        f"Some steps take far longer than most: {average} on average, the median is {median}; speeds count them all"
    ]


def _known(repeats: Sequence[Repeat], key: str) -> list[float]:
    return [repeat.measured[key] for repeat in repeats if repeat.measured[key] is not None]


def _mean(repeats: Sequence[Repeat], key: str) -> float | None:
    found = _known(repeats, key)
    return statistics.fmean(found) if found else None


def _most(repeats: Sequence[Repeat], key: str) -> int | None:
    found = _known(repeats, key)
    return int(max(found)) if found else None
