"""A run in the few numbers that decide between configurations, each with the file it was read from."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.analyse.evaluations import EVALUATION_FILE
from foretune.analyse.groups import Configuration
from foretune.analyse.money import Price
from foretune.analyse.run_data import RunData
from foretune.core.scores import NEVER_NEGATIVE, UNBOUNDED, Bounds, bounds_of, is_share
from foretune.core.values import Evaluation
from foretune.core.values.base import content_hash
from foretune.stats.bounded import bounded_mean
from foretune.stats.intervals import Estimate
from foretune.stats.speed import samples_per_s
from foretune.stats.steady import find_steady

HELD_OUT_LOSS = "held-out loss"
STYLE = "style"
TIME, SPEED, MEMORY, MONEY = "time", "speed", "peak memory", "money"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    name: str
    unit: str
    higher_is_better: bool
    file: str
    """Where it was read, relative to the run directory."""
    of: Callable[[RunData], float | None]
    """None is "not measured", never zero."""
    bounds: Bounds = UNBOUNDED
    """Between which numbers it must lie."""
    num_outcomes: Callable[[RunData], int] | None = None
    """Where it is a share, of how many independent outcomes, such as prompts; None where it is none."""

    def values(self, runs: Sequence[RunData]) -> list[float]:
        """Of the runs that have it."""
        found = (self.of(run) for run in runs)
        return [value for value in found if value is not None and math.isfinite(value)]

    def estimate(self, runs: Sequence[RunData]) -> Estimate | None:
        """The mean over runs, each one number, with an interval within its bounds; one run has no interval."""
        values = self.values(runs)
        if not values:
            return None
        value, low, high = statistics.fmean(values), None, None
        if len(values) > 1:
            value, low, high = bounded_mean(values, CONFIDENCE, self.bounds, num_outcomes=self.outcomes(runs))
        num = len(values)
        return Estimate(value, low, high, CONFIDENCE, num, num, 0, None, run_values=tuple(values))

    def outcomes(self, runs: Sequence[RunData]) -> int:
        """In how many outcomes the runs that have it succeeded or failed; 0 where it is no share."""
        return 0 if self.num_outcomes is None else sum(map(self.num_outcomes, runs))


def training_s(run: RunData) -> float | None:
    """Seconds from the first step to the end, validation and saving included; loading and encoding are not."""
    return sum(run.step_times_s) + sum(run.pauses_s.values()) if run.step_times_s else None


def speed(run: RunData) -> float | None:
    """Samples over time of the steady steps."""
    times_s = run.speed_times_s
    if not times_s:
        return None
    num_warmup = find_steady(times_s).num_warmup
    return samples_per_s(times_s, run.samples_per_step, num_warmup=num_warmup)


def peak_bytes(run: RunData) -> float | None:
    """Tensors of the device where there is one, the whole process otherwise."""
    if run.record is None:
        return None
    measured = run.record.measured
    return measured.peak_host_bytes if measured.peak_device_bytes is None else measured.peak_device_bytes


def held_out_loss(run: RunData) -> float | None:
    """After the last step."""
    return run.held_out_losses[-1][1] if run.held_out_losses else None


Evaluations = Mapping[Path, Evaluation]
"""By the path of the run."""


def measures(
    found: Sequence[Configuration],
    price: Callable[[RunData], Price | None],
    evaluations: Evaluations,
    quality: str | None = None,
) -> tuple[Measure, ...]:
    """What these configurations differ in, the most wanted first: quality, time, memory, money."""
    chosen = quality_measure(found, evaluations, quality)
    return (
        *([] if chosen is None else [chosen]),
        Measure(TIME, "s", higher_is_better=False, file="events.jsonl", of=training_s, bounds=NEVER_NEGATIVE),
        Measure(
            SPEED, "samples/s", higher_is_better=True, file="events.jsonl", of=_remembered(speed), bounds=NEVER_NEGATIVE
        ),
        Measure(MEMORY, "bytes", higher_is_better=False, file="record.json", of=peak_bytes, bounds=NEVER_NEGATIVE),
        Measure(MONEY, "usd", higher_is_better=False, file="events.jsonl", of=_usd(price), bounds=NEVER_NEGATIVE),
    )


def _remembered(of: Callable[[RunData], float | None]) -> Callable[[RunData], float | None]:
    """Finding where a run becomes steady takes a while; a page asks for it several times."""
    known: dict[Path, float | None] = {}

    def remembered(run: RunData) -> float | None:
        if run.path not in known:
            known[run.path] = of(run)
        return known[run.path]

    return remembered


def _usd(price: Callable[[RunData], Price | None]) -> Callable[[RunData], float | None]:
    def of(run: RunData) -> float | None:
        found, seconds = price(run), training_s(run)
        if found is None or seconds is None:
            return None
        return found.usd(seconds, num_devices=run.experiment.parallel.devices)

    return of


def quality_measure(
    found: Sequence[Configuration], evaluations: Evaluations, name: str | None = None
) -> Measure | None:
    """The metric that says which is better: the named one, else the first that every finished run was evaluated in by
    the same settings, else the held-out loss where all were asked about the same data; None where there is none.
    """
    known = quality_metrics(found, evaluations)
    runs = [run for one in found for run in one.finished]
    if name is None:
        # One in which all are equal, such as none right of all, tells nothing: another may.
        telling = [metric for metric in known if len({_quality_of(run, evaluations, metric) for run in runs}) > 1]
        known = telling or known
    for metric in known:
        if name not in (None, metric):
            continue
        if metric == HELD_OUT_LOSS and all(held_out_loss(run) is not None for run in runs):
            # As the run itself measured it, which every run has; an evaluation may have taken other noise.
            return Measure(
                metric, "", higher_is_better=False, file="events.jsonl", of=held_out_loss, bounds=bounds_of(metric)
            )
        score = evaluations[runs[0].path].score(metric)
        assert score is not None, "a metric that all have"
        assert score.higher_is_better is not None, "a metric with a better side"
        return Measure(
            metric,
            score.unit,
            score.higher_is_better,
            EVALUATION_FILE.as_posix(),
            _scored(metric, evaluations),
            bounds_of(metric),
            _counted(metric, evaluations) if is_share(metric) else None,
        )
    return None


OF_THE_RUN = frozenset({"precision", "quantize"})
"""Settings of an evaluation that follow from the run."""


def quality_metrics(found: Sequence[Configuration], evaluations: Evaluations) -> list[str]:
    """The metrics in which all finished runs can be compared, the most telling first."""
    runs = [run for one in found for run in one.finished]
    known = [evaluations[run.path] for run in runs if run.path in evaluations]
    names = list(_metrics(known)) if known and len(known) == len(runs) and _asked_alike(known) else []
    # Who trains a style asks for it first.
    names.sort(key=lambda name: name != STYLE)
    data = {run.effective.get("data_fingerprint") for run in runs}
    if runs and len(data) == 1 and HELD_OUT_LOSS not in names and all(held_out_loss(run) is not None for run in runs):
        names.append(HELD_OUT_LOSS)
    return names


def _asked_alike(found: Sequence[Evaluation]) -> bool:
    """Whether the evaluations were requested alike. The numbers that each run is sampled in are its own."""
    asked = [{k: v for k, v in one.settings.items() if k not in OF_THE_RUN} for one in found]
    return len({content_hash(settings) for settings in asked}) == 1


def _metrics(found: Sequence[Evaluation]) -> dict[str, bool]:
    """Metrics with a better side that all evaluations have a value of, in the order of the first."""
    first = {
        score.metric: score.higher_is_better
        for score in found[0].scores
        if score.column == "run" and score.higher_is_better is not None
    }
    return {
        metric: better
        for metric, better in first.items()
        if all((score := one.score(metric)) is not None and score.value is not None for one in found)
    }


def _quality_of(run: RunData, evaluations: Evaluations, metric: str) -> float | None:
    score = evaluations[run.path].score(metric) if run.path in evaluations else None
    return held_out_loss(run) if score is None else score.value


def _scored(metric: str, evaluations: Evaluations) -> Callable[[RunData], float | None]:
    def of(run: RunData) -> float | None:
        score = evaluations[run.path].score(metric) if run.path in evaluations else None
        return None if score is None else score.value

    return of


def _counted(metric: str, evaluations: Evaluations) -> Callable[[RunData], int]:
    """Of how many independent outcomes a run's share was made."""

    def of(run: RunData) -> int:
        score = evaluations[run.path].score(metric) if run.path in evaluations else None
        return 0 if score is None else score.num_values

    return of
