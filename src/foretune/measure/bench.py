"""Training speed at a fixed number of steps: repeats in fresh processes, every raw number kept."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretune.config.lengths import only_steps
from foretune.config.reading import Asked
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.core.values import Plan, RunRecord
from foretune.measure.bench_request import TrainingRequest, with_lever
from foretune.measure.bench_summary import Repeat, Series, summary_of
from foretune.measure.fresh_process import MeasurementFailed, ask_fresh_process
from foretune.measure.step_flops import StepFlops, step_flops
from foretune.record.atomic import write_text
from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory
from foretune.stats.break_even import BreakEven, break_even
from foretune.trace.program import IrregularStep
from foretune.training.busyness import BusyWatch

BENCH_FILE = "bench.json"
_FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class BenchChoices:
    """How to measure."""

    num_steps: int = 50
    num_repeats: int = 5
    is_synthetic: bool = False
    has_random_weights: bool = False
    """Of the model; only with synthetic data."""
    has_break_even: bool = True
    """Where the experiment compiles: measure it uncompiled too."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What was measured, and where its raw numbers are."""

    path: Path
    name: str
    choices: BenchChoices
    series: Series
    uncompiled: Series | None
    break_even: BreakEven | None
    warnings: tuple[str, ...]
    plan: Plan | None = None
    """What was forecast for it; None where there was no forecast."""
    num_devices: int = 1
    asked: Asked | None = None
    """What was measured; None where it was not kept."""

    def to_mapping(self) -> dict[str, Any]:
        """The content of bench.json."""
        from dataclasses import asdict

        return {
            "format": "Bench",
            "format_version": _FORMAT_VERSION,
            "name": self.name,
            "id": self.path.name,
            "choices": asdict(self.choices),
            "num_devices": self.num_devices,
            "as_asked": asdict(self.series),
            "uncompiled": None if self.uncompiled is None else asdict(self.uncompiled),
            "break_even": None if self.break_even is None else asdict(self.break_even),
            "warnings": list(self.warnings),
        }


def measure_once(
    asked: Asked,
    directory: Path,
    *,
    num_steps: int = 50,
    is_synthetic: bool = False,
    has_random_weights: bool = False,
    plan: Plan | None = None,
    flops: StepFlops | None = None,
    observer: Observer | None = None,
) -> Path:
    """Trains a number of steps in a fresh process; returns the run directory it made under directory/runs/.

    Raises `MeasurementFailed` where the steps were not all made; what was measured until then is kept.
    """
    request = TrainingRequest(
        asked={**only_steps(asked.as_asked, num_steps), "name": asked.experiment.name},
        directory=str(directory),
        is_synthetic=is_synthetic,
        has_random_weights=has_random_weights,
        plan=None if plan is None else plan.to_mapping(),
        model_flops=None if flops is None else flops.model,
    )
    run = Path(ask_fresh_process(request, observer or Observer())["run"])
    outcome = _record(run).outcome
    if outcome.status != "finished":
        raise MeasurementFailed(outcome.status, f"{outcome.reason}. What was measured until then is in {run}")
    return run


def bench(asked: Asked, choices: BenchChoices, benches: Path, observer: Observer, plan: Plan | None = None) -> Bench:
    """Measures, and writes benches/<experiment>/<id>/bench.json beside the run directories of the repeats."""
    warnings = [*asked.warnings, *BusyWatch().warn(observer)]
    flops = _flops(asked, warnings)
    path = new_directory(benches, asked.experiment.name)
    ways = {"as asked": (asked, path)}
    if asked.experiment.levers.compile != "off" and choices.has_break_even:
        mapping = with_lever(asked.as_asked, "compile", "off")
        plain = asked.experiment.levers.model_copy(update={"compile": "off"})
        eager = replace(asked, as_asked=mapping, experiment=asked.experiment.model_copy(update={"levers": plain}))
        ways["uncompiled"] = (eager, path / "uncompiled")
    runs: dict[str, list[Path]] = {way: [] for way in ways}
    for number in range(choices.num_repeats):
        # In turns, so that a machine that slows down does so for both.
        for way, (one, directory) in ways.items():
            made = measure_once(
                one,
                directory,
                num_steps=choices.num_steps,
                is_synthetic=choices.is_synthetic,
                has_random_weights=choices.has_random_weights,
                plan=plan,
                flops=flops,
                observer=_Named(observer, _label(way, number, choices.num_repeats, len(ways))),
            )
            runs[way].append(made)
    series = {way: summary_of([read_repeat(run) for run in made], flops) for way, made in runs.items()}
    both = None
    if "uncompiled" in series:
        both = break_even(
            *([list(one.step_times_s) for one in series[way].repeats] for way in ("uncompiled", "as asked"))
        )
    result = Bench(
        path=path,
        name=asked.experiment.name,
        choices=choices,
        series=series["as asked"],
        uncompiled=series.get("uncompiled"),
        break_even=both,
        warnings=tuple(dict.fromkeys((*warnings, *_warnings_of(series)))),
        plan=plan,
        num_devices=asked.experiment.parallel.devices,
        asked=asked,
    )
    write_text(path / BENCH_FILE, json.dumps(result.to_mapping(), indent=2) + "\n")
    return result


def read_repeat(run: Path) -> Repeat:
    """One repeat's numbers, from its run directory."""
    record = _record(run)
    events = list(read_events(run / "events.jsonl"))
    peak = next((event for event in events if event["kind"] == "peak"), None)
    return Repeat(
        run=str(run),
        step_times_s=tuple(event["step_s"] for event in events if event["kind"] == "step"),
        samples_per_step=int(RunDirectory(run).read_experiment()[2]["samples_per_step"]),
        measured=record.measured.model_dump(),
        peak_flops_per_s=None if peak is None else peak["flops_per_s"],
        peak_source=None if peak is None else peak["source"],
    )


def new_directory(parent: Path, name: str) -> Path:
    """A directory whose name says when; random digits keep two starts in one second apart."""
    path = parent / name / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"The directory {path} cannot be made: {error.strerror or error}.") from error
    return path


def _record(run: Path) -> RunRecord:
    record = RunDirectory(run).read_record()
    assert record is not None, "a repeat that ends writes its record"
    return record


def _flops(asked: Asked, warnings: list[str]) -> StepFlops | None:
    try:
        return step_flops(asked)
    except (IrregularStep, UserError) as error:
        warnings.append(f"Utilisation is not known, because the step could not be counted: {error}")
        return None


def _warnings_of(series: Mapping[str, Series]) -> list[str]:
    """What is to be said of the repeats; of the uncompiled ones, too, because the break-even rests on them."""
    return [
        warning if way == "as asked" else f"{way}: {warning}" for way, one in series.items() for warning in one.warnings
    ]


def _label(way: str, number: int, num_repeats: int, num_ways: int) -> str:
    which = f"{way}, " if num_ways > 1 else ""
    return f"{which}repeat {number + 1} of {num_repeats}"


class _Named(Observer):
    """Progress of one repeat under its name; messages are those of the first repeat alone."""

    def __init__(self, observer: Observer, name: str) -> None:
        self._observer, self._name = observer, name

    def warning(self, text: str) -> None:
        self._observer.warning(text)

    def preparing(self, what: str, done: int, total: int) -> None:
        self._observer.preparing(f"{self._name}: {what}", done, total)
