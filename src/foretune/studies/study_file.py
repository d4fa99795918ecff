"""A study file, part after part: finished parts are kept, stopped ones continue, failed ones are reported."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.choices.study import StudyInference
from foretune.config.reading import Asked
from foretune.config.study_files import StudyAsked, StudyPart
from foretune.core.errors import Refused
from foretune.core.observer import Observer
from foretune.core.values import Plan
from foretune.measure.bench import BENCH_FILE
from foretune.measure.bench_inference import InferenceChoices, bench_inference
from foretune.measure.bench_request import TrainingRequest
from foretune.measure.fresh_process import MeasurementFailed, ask_fresh_process
from foretune.record.run_directory import RunDirectory
from foretune.studies.study_part import PartRequest

INFERENCE = "inference"
"""The folder beside a part's run directory in which its denoising was measured."""
# What may differ between machines and days without making it another run.
_PLACES = ("name", "model", "format_version", "data.path", "data.cache_dir", "data.folders", "save", "track", "accept")
_RUN_ENDED = ("finished",)


@dataclass(frozen=True)
class PartDone:
    """What came of one part."""

    part: StudyPart
    run: Path | None
    is_reused: bool
    """Whether it was there already."""
    problem: str | None = None


Forecast = Callable[[Asked], Plan | None]
"""What is expected of a run on this machine."""


def run_study_file(
    asked: StudyAsked, studies: Path, observer: Observer, forecast: Forecast | None = None
) -> tuple[PartDone, ...]:
    """Runs every part that is not there yet, each in a fresh process, in turns; stores its forecast with the run."""
    for part in asked.parts:
        _refuse_other_question(part, studies)
    plans = _Plans(forecast)
    done = []
    for number, part in enumerate(asked.parts):
        one = _Named(observer, f"{part.label} ({number + 1} of {len(asked.parts)})")
        made = _run(part, studies, one, plans, is_synthetic=asked.file.synthetic_data)
        if made.run is not None and made.problem is None:
            problem = _looked_at(asked, part, made.run, one)
            made = PartDone(part, made.run, made.is_reused, problem)
        if made.problem is not None:
            observer.warning(f"{part.label}: {made.problem}. The study goes on.")
        done.append(made)
    return tuple(done)


def _run(part: StudyPart, studies: Path, observer: Observer, plans: "_Plans", *, is_synthetic: bool) -> PartDone:
    """The part's finished run, its interrupted run continued, or a new one."""
    folder = studies / part.folder
    newest = _newest(folder)
    record = None if newest is None else newest.read_record()
    if newest is not None and record is not None and record.outcome.status == "finished":
        return PartDone(part, newest.path, is_reused=True)
    try:
        if part.protocol == "speed":
            # A speed is that of one process: what was interrupted is measured again.
            return _of_status(part, ask_fresh_process(_steps_request(part, folder, is_synthetic), observer)["run"])
        can_go_on = newest is not None and (record is None or record.outcome.status == "interrupted")
        if can_go_on and newest is not None and "data_fingerprint" in newest.read_experiment()[2]:
            request = PartRequest(do="resume", run=str(newest.path))
        else:
            about, plan = part.about(), plans.of(part)
            request = PartRequest(do="train", asked=part.asked.as_asked, folder=str(folder), about=about, plan=plan)
        answer = ask_fresh_process(request, observer)
    except MeasurementFailed as failure:
        if failure.status == "refused":
            raise
        return PartDone(part, None, is_reused=False, problem=str(failure))
    problem = None if answer["status"] in _RUN_ENDED else f"{answer['status']}: {answer['reason']}"
    return PartDone(part, Path(answer["run"]), is_reused=False, problem=problem)


def _steps_request(part: StudyPart, folder: Path, is_synthetic: bool) -> TrainingRequest:
    return TrainingRequest(
        asked={**part.asked.as_asked, "name": part.study},
        directory=str(folder.parent),
        folder=folder.name,
        about=part.about(),
        is_synthetic=is_synthetic,
    )


def _of_status(part: StudyPart, run: str) -> PartDone:
    record = RunDirectory.open(Path(run)).read_record()
    assert record is not None, "a bench that ends writes its record"
    outcome = record.outcome
    problem = None if outcome.status in _RUN_ENDED else f"{outcome.status}: {outcome.reason}"
    return PartDone(part, Path(run), is_reused=False, problem=problem)


def _looked_at(asked: StudyAsked, part: StudyPart, run: Path, observer: Observer) -> str | None:
    """Quality and inference of a finished run, where they were asked for and are not there; what went wrong, if so."""
    file = asked.file
    try:
        if file.evaluate is not None and not (run / "quality" / "evaluation.json").is_file():
            ask_fresh_process(PartRequest(do="evaluate", run=str(run), evaluation=_evaluation(asked, part)), observer)
        if file.protocol == "equal-steps" and not list((run.parent / INFERENCE).glob(f"*/*/{BENCH_FILE}")):
            _bench(file.inference or StudyInference(), part.asked.experiment, run, observer)
    except MeasurementFailed as failure:
        return str(failure)
    return None


def _evaluation(asked: StudyAsked, part: StudyPart) -> dict[str, Any]:
    choice = asked.file.evaluate
    assert choice is not None, "asked before"
    return {
        "metrics": choice.metrics,
        "prompts": choice.prompts,
        "num_seeds": choice.seeds,
        "num_inference_steps": choice.num_inference_steps,
        "device": part.asked.experiment.parallel.device,
    }


def _bench(choice: StudyInference, experiment: Experiment, run: Path, observer: Observer) -> None:
    choices = InferenceChoices(
        batch_size=choice.batch_size,
        precision=choice.precision,
        size_px=experiment.data.resolution,
        num_frames=experiment.data.num_frames,
        num_steps=choice.steps,
        # Each seed has a process of its own, so that the seeds are the repeats.
        num_repeats=1,
        num_images=0,
        device=experiment.parallel.device,
        threads=experiment.parallel.threads,
    )
    bench_inference(str(run), None, choices, run.parent / INFERENCE, observer)


def _newest(folder: Path) -> RunDirectory | None:
    found = sorted(path.parent for path in folder.glob("*/experiment.yaml") if not path.parent.is_symlink())
    return RunDirectory.open(found[-1]) if found else None


def _refuse_other_question(part: StudyPart, studies: Path) -> None:
    """A run that is there already must be the one that the file asks for, or it would be counted as that."""
    newest = _newest(studies / part.folder)
    if newest is None:
        return
    there, wanted = (dict(_flat("", one)) for one in (_asked_of(newest), part.asked.experiment.to_mapping()))
    differing = [key for key in wanted if there.get(key) != wanted[key] and not key.startswith(_PLACES)]
    if differing:
        told = "; ".join(f"{key}: there {there.get(key)}, now {wanted[key]}" for key in differing[:3])
        raise Refused(
            f"{newest.path} was made by another study file ({told}). Give this study another name "
            f"(name: {part.study}-2), or take {studies / part.study} away"
        )


def _asked_of(run: RunDirectory) -> dict[str, Any]:
    return run.read_experiment()[1].to_mapping()


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), item)
    else:
        yield path, json.dumps(value)


class _Plans:
    """Forecasts, made once for all seeds of a configuration and setting."""

    def __init__(self, forecast: Forecast | None) -> None:
        self._forecast = forecast
        self._made: dict[tuple[str, str], Plan | None] = {}

    def of(self, part: StudyPart) -> dict[str, Any] | None:
        if self._forecast is None:
            return None
        place = (part.configuration, part.setting)
        if place not in self._made:
            self._made[place] = self._forecast(part.asked)
        plan = self._made[place]
        # The seed is part of what was asked, and so of the hash that a plan names.
        whole = part.asked.experiment.whole_hash()
        return None if plan is None else plan.model_copy(update={"experiment": whole}).to_mapping()


class _Named(Observer):
    """Progress of one part under its name; what it says in words is kept to warnings."""

    def __init__(self, observer: Observer, name: str) -> None:
        self._observer, self._name = observer, name

    def warning(self, text: str) -> None:
        self._observer.warning(f"{self._name}: {text}")

    def preparing(self, what: str, done: int, total: int) -> None:
        self._observer.preparing(f"{self._name}: {what}", done, total)
