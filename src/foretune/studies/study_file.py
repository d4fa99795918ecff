"""A study file, part after part: finished parts are kept, stopped ones continue, failed ones are reported."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.choices.study import StudyInference
from foretune.config.reading import Asked
from foretune.config.study_files import StudyAsked, StudyPart, model_name
from foretune.core.errors import Refused
from foretune.core.observer import Observer
from foretune.core.values import Plan
from foretune.executors.executor import Executor, NewNotes
from foretune.executors.outcome import TaskOutcome
from foretune.executors.reopening import reopen
from foretune.executors.state import read_state
from foretune.executors.task import Task
from foretune.record.progress_file import read_progress
from foretune.sweeps.trial_request import (
    WORKER,
    TrialRequest,
    evaluation_fields,
    finished_run,
    is_evaluated,
    is_inference_measured,
    newest_run,
)
from foretune.sweeps.trial_resources import resources_of

# What may differ between machines and days without making it another run.
_PLACES = ("name", "model", "format_version", "data.path", "data.cache_dir", "data.folders", "save", "track", "accept")
_LOOK_EVERY_S = 1.0


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
    asked: StudyAsked, studies: Path, executor: Executor, observer: Observer, forecast: Forecast | None = None
) -> tuple[PartDone, ...]:
    """Runs every part that is not there yet, in turns; stores its forecast with the run."""
    for part in asked.parts:
        refuse_other_question(part, studies)
    return _StudyRun(asked, studies, executor, observer, forecast).run()


class _StudyRun:
    """The parts that wait, run and are done."""

    def __init__(
        self, asked: StudyAsked, studies: Path, executor: Executor, observer: Observer, forecast: Forecast | None
    ) -> None:
        self._asked, self._studies, self._executor, self._observer = asked, studies, executor, observer
        self._plans, self._notes = _Plans(forecast), NewNotes(executor)
        self._waiting: deque[StudyPart] = deque()
        self._running: dict[str, StudyPart] = {}
        self._done: dict[str, PartDone] = {}
        self._reused: set[str] = set()
        """Parts whose training was there before; something else of them may be missing."""

    def run(self) -> tuple[PartDone, ...]:
        # What is complete needs no executor.
        self._waiting = deque(part for part in self._asked.parts if not self._was_complete(part))
        while self._waiting or self._running:
            slots = self._executor.num_slots
            while self._waiting and (slots is None or len(self._running) < slots):
                self._start(self._waiting.popleft())
            for name in self._executor.ended(_LOOK_EVERY_S) if self._running else ():
                self._end(self._running.pop(name))
            self._show()
            for note in self._notes.take():
                self._observer.warning(note)
        return tuple(self._done[_task_name(part)] for part in self._asked.parts)

    def _was_complete(self, part: StudyPart) -> bool:
        run, name = finished_run(self._studies / part.folder), _task_name(part)
        if run is None:
            return False
        self._reused.add(name)
        if not self._is_complete(run.path):
            return False
        self._done[name] = PartDone(part, run.path, is_reused=True)
        return True

    def _start(self, part: StudyPart) -> None:
        folder, name = self._studies / part.folder, _task_name(part)
        if read_state(folder).kind == "ended":
            reopen(folder)
        self._running[name] = part
        experiment = part.asked.experiment
        self._executor.submit(
            Task(
                name=name,
                worker=WORKER,
                request=self._request(part, folder).to_mapping(),
                folder=folder,
                resources=resources_of(experiment.parallel, is_here=self._executor.name == "local"),
            )
        )

    def _is_complete(self, run: Path) -> bool:
        file = self._asked.file
        return (file.evaluate is None or is_evaluated(run)) and (
            file.protocol != "equal-steps" or is_inference_measured(run.parent)
        )

    def _request(self, part: StudyPart, folder: Path) -> TrialRequest:
        file, experiment = self._asked.file, part.asked.experiment
        is_speed = part.protocol == "speed"
        inference = _inference(file.inference or StudyInference(), part) if file.protocol == "equal-steps" else None
        return TrialRequest(
            measure="speed" if is_speed else "train",
            experiment=part.asked.as_asked,
            name=part.study,
            folder=str(folder.absolute()),
            about={"study": part.about()},
            plan=None if is_speed else self._plans.of(part),
            is_synthetic=file.synthetic_data,
            evaluation=None if file.evaluate is None else evaluation_fields(file.evaluate, experiment.parallel.device),
            inference=inference,
        )

    def _end(self, part: StudyPart) -> None:
        folder, name = self._studies / part.folder, _task_name(part)
        outcome = read_state(folder).outcome
        assert outcome is not None, "the executor says that it has ended"
        if outcome.kind == "refused":
            raise Refused(outcome.reason or f"{part.label} was refused")
        run = newest_run(folder)
        problem = _problem(outcome)
        self._done[name] = PartDone(part, None if run is None else run.path, name in self._reused, problem)
        if problem is not None:
            self._observer.warning(f"{part.label}: {problem}. The study goes on. Log: {folder / 'log.txt'}")

    def _show(self) -> None:
        for part in self._running.values():
            number = self._asked.parts.index(part) + 1
            what, done, total = read_progress(self._studies / part.folder) or ("starting", 0, 1)
            self._observer.preparing(f"{part.label} ({number} of {len(self._asked.parts)}): {what}", done, total)


def _problem(outcome: TaskOutcome) -> str | None:
    if outcome.kind == "done":
        return None
    return f"{outcome.kind}: {(outcome.reason or '').rstrip('.')}"


def _task_name(part: StudyPart) -> str:
    return f"{part.configuration}.{part.setting}.{part.seed}"[-100:]


def _inference(choice: StudyInference, part: StudyPart) -> dict[str, Any]:
    experiment = part.asked.experiment
    return {
        "batch_size": choice.batch_size,
        "precision": choice.precision,
        "size_px": experiment.data.resolution,
        "num_frames": experiment.data.num_frames,
        "num_steps": choice.steps,
        # Each seed has a process of its own, so that the seeds are the repeats.
        "num_repeats": 1,
        "num_images": 0,
        "device": experiment.parallel.device,
        "threads": experiment.parallel.threads,
    }


def refuse_other_question(part: StudyPart, studies: Path) -> None:
    """A run that is there already must be the one that the file asks for, or it would be counted as that."""
    newest = newest_run(studies / part.folder)
    if newest is None:
        return
    _, experiment, effective = newest.read_experiment()
    present, wanted = (dict(_flat("", one)) for one in (experiment.to_mapping(), part.asked.experiment.to_mapping()))
    differing = [key for key in wanted if present.get(key) != wanted[key] and not key.startswith(_PLACES)]
    # Runs of older releases store their model alone.
    question = {"model": model_name(experiment.model), **effective.get("study", {}).get("question", {})}
    for key, value in part.question.items():
        # An evaluation can be added to a run that has none.
        is_added = key == "evaluate" and question.get(key) is None
        if key in question and question[key] != value and not is_added:
            present[key], wanted[key] = json.dumps(question[key]), json.dumps(value)
            differing.insert(0, key)
    if differing:
        differences = "; ".join(f"{key}: there {present.get(key)}, now {wanted[key]}" for key in differing[:3])
        raise Refused(
            f"{newest.path} was made by another study file ({differences}). Give this study another name "
            f"(name: {part.study}-2), or take {studies / part.study} away"
        )


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
