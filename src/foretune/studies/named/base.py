"""What every study has: a question, measurements in turns, and an answer that can be drawn."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.measure.bench import measure_once, read_repeat
from foretune.measure.bench_summary import Series, summary_of
from foretune.stats.clusters import shared_confidence
from foretune.stats.deciding import decide
from foretune.stats.intervals import Estimate, Statistic
from foretune.studies.named.small_models import small_flux

_FORMAT_VERSION = 1
_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """A study on one model."""

    directory: Path
    """Where its runs and its answer are kept."""
    model: Path | None = None
    """None: a small pipeline with random weights, made for it."""
    is_quick: bool = False
    """Fewer points, steps and repeats: to try it, not to quote it."""
    observer: Observer = field(default_factory=Observer)

    def model_folder(self, kind: str) -> Path:
        """The model to study; `kind` says which one is made where none was given."""
        from foretune.models.tiny import write_tiny_pipeline

        if self.model is not None:
            return self.model
        folder = self.directory / "model"
        return small_flux(folder) if kind == "small flux" else write_tiny_pipeline(kind, folder)

    @property
    def num_repeats(self) -> int:
        return 2 if self.is_quick else 3


@dataclass(frozen=True)
class StudyValue:
    """A number with its interval; None where it is not known."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, estimate: Estimate, scale: float = 1.0) -> "StudyValue":
        """An estimated time in another unit."""
        value, low, high = (
            # An interval may reach below zero, a time cannot.
            None if one is None else max(one, 0.0) * scale
            for one in (estimate.value, estimate.low, estimate.high)
        )
        return cls(value, low, high)

    @classmethod
    def rate(cls, estimate: Estimate, count: float) -> "StudyValue":
        """How many a second, where so many are made in the estimated time."""
        low = None if estimate.high is None else count / estimate.high
        high = None if estimate.low is None or estimate.low <= 0 else count / estimate.low
        return cls(None if estimate.value is None else count / estimate.value, low, high)

    @classmethod
    def memory_mib(cls, series: Series) -> "StudyValue":
        """The most memory: the device's where it has its own, else the process's; unknown where neither was read."""
        num_bytes = series.peak_host_bytes if series.peak_device_bytes is None else series.peak_device_bytes
        return cls(None if num_bytes is None else num_bytes / 2**20)


@dataclass(frozen=True, kw_only=True)
class StudyAxis:
    """One thing that was measured."""

    key: str
    title: str
    """With its unit: step time, ms."""


@dataclass(frozen=True, kw_only=True)
class StudyPoint:
    """One setting, and what was measured with it."""

    label: str
    x: float | None = None
    """Where the setting is a number."""
    values: Mapping[str, StudyValue]
    num_runs: int
    num_values: int
    num_dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The answer of a study: what reports/study_plots.py draws."""

    name: str
    title: str
    setting: str
    """What differs between the points."""
    is_line: bool
    """Whether the settings are numbers on a line, or names."""
    axes: tuple[StudyAxis, ...]
    points: tuple[StudyPoint, ...]
    findings: tuple[str, ...]
    """In words, with the number behind them."""
    measured_with: dict[str, Any]
    """Model, steps, repeats, machine."""
    warnings: tuple[str, ...] = ()
    is_sideways: bool = False
    """Bars that lie, for long names."""

    def to_mapping(self) -> dict[str, Any]:
        return {"format": "Study", "format_version": _FORMAT_VERSION, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question that one command answers."""

    name: str
    title: str
    run: Callable[[StudyRequest], StudyResult]
    num_processes: Callable[[bool], int]
    """Fresh processes that it starts, quick or not."""
    extra_s: Callable[[bool], float] = lambda _: 0.0
    """Seconds beyond starting these processes and their steps with the model that is made for it."""


def measure_in_turns(
    request: StudyRequest, settings: Mapping[str, dict[str, Any]], *, num_steps: int, is_synthetic: bool = True
) -> dict[str, Series]:
    """Each setting's repeats, in fresh processes and in turns, so that a machine that drifts does so for all."""
    asked = {label: understand(mapping, source=f"The study ({label})") for label, mapping in settings.items()}
    runs: dict[str, list[Path]] = {label: [] for label in settings}
    total = request.num_repeats * len(settings)
    for number in range(request.num_repeats):
        for label, one in asked.items():
            done = sum(map(len, runs.values()))
            request.observer.preparing(f"measuring {label}, repeat {number + 1}", done, total)
            directory = request.directory / label.replace(" ", "-").replace("=", "-")
            runs[label].append(measure_once(one, directory, num_steps=num_steps, is_synthetic=is_synthetic))
    request.observer.preparing("measuring", total, total)
    return {label: summary_of([read_repeat(run) for run in made], None) for label, made in runs.items()}


def point(label: str, series: Series, values: Mapping[str, StudyValue], x: float | None = None) -> StudyPoint:
    """What a series says of one setting."""
    step = series.step_s
    return StudyPoint(
        label=label,
        x=x,
        values=values,
        num_runs=step.num_runs,
        num_values=step.num_values,
        num_dropped=step.num_dropped,
    )


def warnings_of(series: Mapping[str, Series]) -> tuple[str, ...]:
    return tuple(f"{label}: {warning}" for label, one in series.items() for warning in one.warnings)


def as_fast(
    slow: Series,
    fast: Series,
    what: str = "times as fast",
    *,
    statistic: Statistic = "median",
    num_comparisons: int = 1,
) -> str:
    """How much faster a sample goes the second way, in words: a ratio only where the repeats show that there is one.

    By the statistic of step times that the study's table shows. `num_comparisons`: how many could have been chosen to
    be spoken of; the best of many is better than the others by chance, too.
    """
    steps = [one.step_s if statistic == "median" else one.mean_step_s for one in (fast, slow)]
    if any(step.value is None for step in steps):
        return "not decided: most of its runs are not steady"
    per_sample = [
        [value / one.samples_per_step for value in step.run_values]
        for one, step in zip((fast, slow), steps, strict=True)
    ]
    found = decide(*per_sample, is_paired=True, confidence=shared_confidence(_CONFIDENCE, num_comparisons))
    if found.ratio is None or found.low is None or found.high is None:
        return "not decided: too few repeats"
    ratio = f"{found.ratio:.2f} {what} ({found.low:.2f} to {found.high:.2f})"
    if found.answer == "no difference shown":
        return f"no difference shown: {ratio}"
    return ratio if found.answer != "inconclusive" else f"not decided: {ratio}; more repeats would show it"


def mean(value: StudyValue, absent: float = math.nan) -> float:
    """For sentences; what was never steady has no number to speak of."""
    return absent if value.value is None else value.value
