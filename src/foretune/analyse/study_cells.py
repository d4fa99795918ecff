"""What was measured in one configuration and setting of a study, read off its run directories."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foretune.analyse.evaluations import evaluation_of
from foretune.analyse.money import run_price
from foretune.analyse.ranking import FEWEST_RUNS
from foretune.analyse.run_data import RunData, runs_in
from foretune.analyse.run_numbers import training_s
from foretune.core.errors import UserError
from foretune.core.input_files import MOST_JSON_BYTES, read_json
from foretune.core.scores import NEVER_NEGATIVE, Bounds, bounds_of, is_share
from foretune.core.units import MIB
from foretune.core.vocabulary import TimePhase
from foretune.record.environment import machine_text
from foretune.stats.bounded import bounded_mean
from foretune.stats.break_even import start_s
from foretune.stats.intervals import ONE_RUN, summarise_run, typical

HELD_OUT_LOSS = "held-out loss"
TRAINING_SPEED = "training, samples/s"
ITERATION_SPEED = "training, iterations/s"
INFERENCE_SPEED = "inference, steps/s"
PEAK_MEMORY = "peak memory, MiB"
STEPS_MADE = "steps made"
SAMPLES_SEEN = "samples seen"
COUNTED = "time counted, s"
BEFORE = "before the clock, s"
SAMPLE_RATE = "samples/s"
STEP_TIME = "step time, ms"
DATA_SHARE = "share of the step spent on data"
START = "start beyond steady steps, s"
RUN_TIME = "time of the run, s"
COST = "cost of the run, $"
SAMPLES_COST = "cost of 1,000 samples, $"
_PRICED_SAMPLES = 1000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class CellAxis:
    """One thing that was measured."""

    title: str
    """With its unit."""
    higher_is_better: bool | None
    """None where neither is."""
    is_answer: bool
    """Whether the protocol asks for it; the others are reported beside it."""


@dataclass(frozen=True)
class Number:
    """A mean over the runs of a cell with its interval, which is absent where there are fewer than three."""

    value: float
    low: float | None
    high: float | None
    by_seed: Mapping[int, float]
    """One number a run."""
    bounds: Bounds = NEVER_NEGATIVE
    """Between which numbers each of them must lie; speeds, losses and memory are never negative."""
    outcomes_by_seed: Mapping[int, int] = field(default_factory=dict)
    """Where it is a share: of how many independent outcomes, such as prompts."""

    @classmethod
    def of(
        cls,
        by_seed: Mapping[int, float],
        bounds: Bounds = NEVER_NEGATIVE,
        outcomes_by_seed: Mapping[int, int] | None = None,
    ) -> "Number | None":
        """None where nothing was measured."""
        known = {seed: value for seed, value in by_seed.items() if math.isfinite(value)}
        if not known:
            return None
        outcomes = {seed: num for seed, num in (outcomes_by_seed or {}).items() if seed in known}
        if len(known) < FEWEST_RUNS:
            return cls(statistics.fmean(known.values()), None, None, known, bounds, outcomes)
        interval = bounded_mean(list(known.values()), _CONFIDENCE, bounds, num_outcomes=sum(outcomes.values()))
        return cls(*interval, known, bounds, outcomes)


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study, and what lies beside it."""

    run: RunData
    about: Mapping[str, Any]
    """Which part of the study it is, as its own directory says."""
    evaluation: Any = None
    inference: Mapping[str, Any] | None = None
    """The bench of its denoising."""

    @property
    def seed(self) -> int:
        return int(self.about["seed"])

    def priced(self, usd_per_hour: float | None) -> "StudyRun":
        """The same with another price of its configuration."""
        about = {**self.about, "usd_per_hour": usd_per_hour}
        return replace(self, about=about, run=replace(self.run, effective={**self.run.effective, "study": about}))


@dataclass(frozen=True, kw_only=True)
class StudyCell:
    """All finished runs of one configuration in one setting."""

    configuration: str
    setting: str
    parts: tuple[StudyRun, ...]
    unfinished: tuple[str, ...] = ()
    """How the other runs ended."""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    """By the title of the axis."""
    notes: tuple[str, ...] = ()

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(part.run.run_id for part in self.parts)

    @property
    def num_devices(self) -> int | None:
        """None where no run has finished."""
        return self.parts[0].run.experiment.parallel.devices if self.parts else None

    @property
    def machine(self) -> str:
        """In words; several where its runs were made on several."""
        return "; ".join(dict.fromkeys(machine_text(part.run.environment) for part in self.parts))

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all that it uses; None where there is none."""
        price = run_price(self.parts[0].run) if self.parts else None
        return None if price is None else price.usd_per_hour * (self.num_devices or 1)

    @property
    def is_compiled(self) -> bool:
        return any(part.run.experiment.levers.compile != "off" for part in self.parts)

    @property
    def step_times_s(self) -> list[tuple[float, ...]]:
        """Of each run, warm-up included."""
        return [part.run.speed_times_s for part in self.parts]


def read_parts(directory: Path) -> list[StudyRun]:
    """Every run below a study's folder that says it is a part of one; of each part the newest that has finished."""
    newest: dict[tuple[str, str, str, int], StudyRun] = {}
    for run in runs_in(directory):
        about = run.effective.get("study")
        if about is None:
            continue
        place = (about["name"], about["configuration"], about["setting"], int(about["seed"]))
        before = newest.get(place)
        if before is None or run.has_finished or not before.run.has_finished:
            newest[place] = StudyRun(
                run=run, about=about, evaluation=evaluation_of(run.path), inference=_inference(run.path)
            )
    if not newest:
        raise UserError(f"There is no part of a study in {directory}. Run: foretune study FILE.yaml")
    return list(newest.values())


def cells_of(parts: Sequence[StudyRun]) -> tuple[StudyCell, ...]:
    """Parts that differ in their seed only, together; in the order of the study's file."""
    groups: dict[tuple[str, str], list[StudyRun]] = {}
    for part in sorted(parts, key=lambda part: (tuple(part.about["order"]), part.seed)):
        groups.setdefault((part.about["configuration"], part.about["setting"]), []).append(part)
    return tuple(_cell(configuration, setting, group) for (configuration, setting), group in groups.items())


def _cell(configuration: str, setting: str, group: Sequence[StudyRun]) -> StudyCell:
    done = tuple(part for part in group if part.run.has_finished)
    speed_only = bool(group) and group[0].about["protocol"] == "speed"
    readers = {**_READERS, **_speed_readers(done)} if speed_only else _READERS
    found = {title: Number.of({part.seed: value for part in done if (value := of(part)) is not None})
             for title, of in readers.items()}  # fmt: skip
    scores: dict[str, dict[int, Any]] = {}
    for part in done:
        for score in part.evaluation.scores if part.evaluation is not None else ():
            if score.column == "run" and score.value is not None:
                scores.setdefault(score.metric, {})[part.seed] = score
    found |= {
        axis_of_score(next(iter(by_seed.values()))).title: _scored(metric, by_seed)
        for metric, by_seed in scores.items()
    }
    return StudyCell(
        configuration=configuration,
        setting=setting,
        parts=done,
        unfinished=tuple(f"seed {part.seed}: {part.run.end}" for part in group if not part.run.has_finished),
        numbers={title: number for title, number in found.items() if number is not None},
        notes=(*_notes(done), *(_unsteady(done) if speed_only else ())),
    )


def _scored(metric: str, by_seed: Mapping[int, Any]) -> Number | None:
    outcomes = {seed: score.num_values for seed, score in by_seed.items()} if is_share(metric) else {}
    return Number.of({seed: score.value for seed, score in by_seed.items()}, bounds_of(metric), outcomes)


def axis_of_score(score: Any) -> CellAxis:
    """A metric of an evaluation as an axis."""
    unit = f", {score.unit}" if score.unit else ""
    return CellAxis(f"{score.metric}{unit}", score.higher_is_better, is_answer=score.higher_is_better is not None)


def _notes(parts: Sequence[StudyRun]) -> list[str]:
    """What the numbers of a cell rest on, where it is not what was asked for."""
    notes = []
    smaller = {
        (int(part.inference["choices"]["batch_size"]), int(part.inference["batch_size"]))
        for part in parts
        if part.inference is not None and part.inference["did_not_fit"]
    }
    notes += [f"a batch of {asked} did not fit: {INFERENCE_SPEED} with {used}" for asked, used in sorted(smaller)]
    environments = {part.run.record.environment_hash for part in parts if part.run.record is not None}
    if len(environments) > 1:
        notes.append(f"its runs were made in {len(environments)} unlike environments")
    return notes


def batch_of(cell: StudyCell) -> set[tuple[int, str]]:
    """Batch sizes and precisions with which the inference of a cell was measured."""
    return {
        (int(part.inference["batch_size"]), str(part.inference["choices"]["precision"]))
        for part in cell.parts
        if part.inference is not None
    }


def _inference(run: Path) -> dict[str, Any] | None:
    found = sorted((run.parent / "inference").glob("*/*/bench.json"))
    try:
        return dict(read_json(found[-1], MOST_JSON_BYTES, within=run.parent)) if found else None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{found[-1]} is not a bench of inference: {error}. Measure it again.") from error


def _held_out(part: StudyRun) -> float | None:
    losses = part.run.held_out_losses
    return losses[-1][1] if losses else None


def _training_speed(part: StudyRun) -> float | None:
    """Of all devices: an iteration on two devices trains twice the samples."""
    return _sample_rate(part) if part.run.speed_times_s else None


def _iteration_speed(part: StudyRun) -> float | None:
    return 1 / _mean_step_s(part) if part.run.speed_times_s else None


def _inference_speed(part: StudyRun) -> float | None:
    times_s = (
        [] if part.inference is None else [time_s for one in part.inference["denoising"] for time_s in one["times_s"]]
    )
    # The first one warms up.
    return 1 / statistics.fmean(times_s[1:] or times_s) if times_s else None


def _run_time(part: StudyRun) -> float | None:
    """From the first step to the end, validation and saving included."""
    return training_s(part.run) if part.run.record is not None else None


def _cost(part: StudyRun) -> float | None:
    price, seconds = run_price(part.run), _run_time(part)
    return None if price is None or seconds is None else price.usd(seconds, part.run.experiment.parallel.devices)


def _samples_cost(part: StudyRun) -> float | None:
    """At the training speed: steps on several devices train more samples, so that the cost of a step says nothing."""
    price, rate = run_price(part.run), _training_speed(part)
    num_devices = part.run.experiment.parallel.devices
    return None if price is None or not rate else price.usd(_PRICED_SAMPLES / rate, num_devices)


def _peak_mib(part: StudyRun) -> float | None:
    measured = None if part.run.record is None else part.run.record.measured
    if measured is None:
        return None
    num_bytes = measured.peak_host_bytes if measured.peak_device_bytes is None else measured.peak_device_bytes
    return None if num_bytes is None else num_bytes / MIB


def spelled(title: str) -> str:
    """The title of an axis as people write it."""
    return title.replace("psnr", "PSNR").replace("ssim", "SSIM")


def epoch_title(num_samples: int) -> str:
    return f"time for {num_samples:,} samples, min"


def _speed_readers(parts: Sequence[StudyRun]) -> dict[str, "Reader"]:
    """What only the speed protocol reads; times are left out if most of the runs never become steady."""
    readers: dict[str, Reader] = {DATA_SHARE: _data_share, START: lambda part: start_s(part.run.speed_times_s)}
    if typical([part.run.speed_times_s for part in parts], statistic="mean").value is None:
        return readers
    readers |= {SAMPLE_RATE: _sample_rate, STEP_TIME: lambda part: _mean_step_s(part) * 1000}
    num_samples = parts[0].about.get("epoch_samples")
    if num_samples is not None:
        readers[epoch_title(num_samples)] = lambda part: num_samples / _sample_rate(part) / 60
    return readers


def _unsteady(parts: Sequence[StudyRun]) -> list[str]:
    found = typical([part.run.speed_times_s for part in parts], statistic="mean")
    return [warning for warning in found.warnings if warning != ONE_RUN]


def _mean_step_s(part: StudyRun) -> float:
    """Steady steps over all of their time, so that slow steps count with their whole length."""
    return summarise_run(part.run.speed_times_s, "mean").value


def _sample_rate(part: StudyRun) -> float:
    return part.run.samples_per_step / _mean_step_s(part)


def _data_share(part: StudyRun) -> float | None:
    """Of the time in steps: waiting for batches, or making them."""
    total_s = sum(sum(phases_s.values()) for phases_s in part.run.phases_s)
    if part.run.effective.get("is_synthetic") or total_s == 0:
        return None
    return sum(phases_s.get(TimePhase.DATA, 0.0) for phases_s in part.run.phases_s) / total_s


def _steps_made(part: StudyRun) -> float | None:
    return None if part.run.record is None else float(part.run.steps_done)


def _samples_seen(part: StudyRun) -> float | None:
    steps = _steps_made(part)
    return None if steps is None else steps * part.run.samples_per_step


def _counted(part: StudyRun) -> float | None:
    return None if part.run.record is None else part.run.record.measured.counted_s


def _before(part: StudyRun) -> float | None:
    return None if part.run.record is None else part.run.record.measured.prepare_s


Reader = Callable[[StudyRun], float | None]
_READERS: Mapping[str, Reader] = {
    HELD_OUT_LOSS: _held_out,
    TRAINING_SPEED: _training_speed,
    ITERATION_SPEED: _iteration_speed,
    INFERENCE_SPEED: _inference_speed,
    PEAK_MEMORY: _peak_mib,
    STEPS_MADE: _steps_made,
    SAMPLES_SEEN: _samples_seen,
    COUNTED: _counted,
    BEFORE: _before,
    RUN_TIME: _run_time,
    COST: _cost,
    SAMPLES_COST: _samples_cost,
}
