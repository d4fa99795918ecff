"""Runs a sweep: a strategy chooses combinations, an executor performs their trials, files hold every result.

The controller holds nothing that the trials' folders do not: killed at any moment and started again, it continues.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from foretune.choices.running import Parallel
from foretune.choices.sweep import FrontierStrategy, is_excluded
from foretune.config.sweep_files import Point, SweepAsked, SweepTrial, axis_word, point_key
from foretune.core.errors import UserError
from foretune.core.units import GIB, bytes_text
from foretune.core.values import Plan
from foretune.executors.executor import Executor, NewNotes
from foretune.executors.outcome import TaskOutcome
from foretune.executors.reopening import reopen
from foretune.executors.state import read_state
from foretune.executors.task import Limits, Task
from foretune.executors.task_files import write_outcome, write_task
from foretune.record.locking import try_lock
from foretune.record.progress_file import read_progress
from foretune.sweeps.strategies import open_strategy
from foretune.sweeps.strategies.seam import MemoryExcess, PointResult, SearchSpace
from foretune.sweeps.sweep_folder import SweepFolder
from foretune.sweeps.trial_facts import TrialFacts, read_facts, write_facts
from foretune.sweeps.trial_request import WORKER, TrialRequest, evaluation_fields
from foretune.sweeps.trial_resources import resources_of
from foretune.sweeps.trial_results import TrialResult, planned_peak_bytes, read_result
from foretune.sweeps.trial_scores import point_result, spent_usd

_LOOK_EVERY_S = 1.0


class Forecaster(Protocol):
    """The memory forecast of trials."""

    def plan(self, trial: SweepTrial) -> Plan | None: ...

    def estimate(self, trial: SweepTrial) -> MemoryExcess | None: ...


class NoForecasts:
    """Where nothing is known of the machines that trials run on."""

    def plan(self, trial: SweepTrial) -> Plan | None:
        return None

    def estimate(self, trial: SweepTrial) -> MemoryExcess | None:
        return None


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """Where a sweep stands."""

    num_ended: int
    num_planned: int | None
    """Trials; None where that depends on the results."""
    running: tuple[str, ...]
    """Each with how far it is."""
    left_s: float | None
    """Estimated; None before a trial has ended."""
    usd: float | None
    """Spent so far, by this and earlier starts; None where no price is known."""


class TrialWatcher:
    """Told what happens; does nothing by itself."""

    def ended(self, result: TrialResult, progress: SweepProgress) -> None:
        """A trial has ended, or had ended before."""

    def looked(self, progress: SweepProgress) -> None:
        """About once a second."""

    def noted(self, text: str) -> None:
        """What the user should know of where and when trials run."""


@dataclass(kw_only=True)
class SweepController:
    """One start of a sweep."""

    asked: SweepAsked
    folder: SweepFolder
    executor: Executor
    environment: str
    """Names hardware and software: a trial that was measured there is not measured again."""
    forecasts: Forecaster = field(default_factory=NoForecasts)
    watcher: TrialWatcher = field(default_factory=TrialWatcher)
    usd_per_hour: float | None = None
    retries_failed: bool = False
    """Run trials again that did not finish."""
    now: Callable[[], float] = time.monotonic
    worker: str = WORKER

    def __post_init__(self) -> None:
        self._queue: deque[tuple[Point, int]] = deque()
        self._running: dict[str, list[SweepTrial]] = {}
        """By the name of the task; several combinations can be the same experiment."""
        self._folders: dict[str, Path] = {}
        """By the content hash of trials that exist already."""
        self._results: list[TrialResult] = []
        self._open_points: dict[str, list[TrialResult]] = {}
        self._points: list[PointResult] = []
        self._notes = NewNotes(self.executor)
        self._seconds: list[float] = []
        """Of the trials that were run, for the time left."""

    def run(self) -> list[TrialResult]:
        """Returns the results of all trials, in the order in which they ended."""
        with _only_controller(self.folder):
            self._folders = {read_facts(path).content: path for path in self.folder.trial_folders()}
            strategy = open_strategy(self.asked.file, self._space(), self._known(), self.folder.path)
            self._num_planned = strategy.num_planned
            while True:
                self._enqueue(strategy.propose(tuple(self._points), self._num_free))
                if not self._queue and not self._running:
                    break
                self._submit()
                self._collect()
                for note in self._notes.take():
                    self.watcher.noted(note)
                self.watcher.looked(self._progress())
            self._record_predictions(strategy)
        return self._results

    _num_planned: int | None = None

    def _space(self) -> SearchSpace:
        file = self.asked.file

        def estimate(point: Point) -> MemoryExcess | None:
            return self.forecasts.estimate(self._trial(point, file.seeds[0]))

        return SearchSpace(file.options, lambda point: is_excluded(file.exclude, point), estimate)

    def _known(self) -> list[PointResult]:
        """What earlier starts have run in this environment, for strategies that learn from it."""
        file = self.asked.file
        found: dict[str, list[TrialResult]] = {}
        for path in self.folder.trial_folders():
            result = read_result(path)
            if result is not None and result.seed in file.seeds:
                found.setdefault(point_key(result.labels), []).append(result)
        options = {axis: {option.label: option for option in choices} for axis, choices in file.options.items()}
        points = []
        for results in found.values():
            labels = results[0].labels
            if set(labels) != set(options) or any(labels[axis] not in options[axis] for axis in options):
                continue  # the axes have changed since
            point = {axis: options[axis][labels[axis]] for axis in options}
            contents = {self._trial(point, seed).content for seed in file.seeds}
            own = [result for result in results if result.content in contents]
            if len(own) == len(file.seeds):
                points.append(point_result(own, self.usd_per_hour, file.measure))
        return points

    def _trial(self, point: Point, seed: int) -> SweepTrial:
        return self.asked.trial(point, seed, self.environment)

    def _num_free(self) -> int | None:
        slots = self.executor.num_slots
        return None if slots is None else max(0, slots - len(self._running) - len(self._queue))

    def _enqueue(self, points: Sequence[Point]) -> None:
        """Seed by seed, every second round backwards, so that a machine that drifts does so for all."""
        for number, seed in enumerate(self.asked.file.seeds):
            for point in points if number % 2 == 0 else reversed(points):
                self._queue.append((point, seed))

    def _submit(self) -> None:
        """No more than run at once: the forecast of the next one would take time from those that are measured."""
        while self._queue:
            trial = self._trial(*self._queue[0])
            if not self._is_decided(trial):
                slots = self.executor.num_slots
                if slots is not None and len(self._running) >= slots:
                    return
                self._start(trial)
            self._queue.popleft()

    def _is_decided(self, trial: SweepTrial) -> bool:
        """Whether the trial needs no executor: it has ended before, is under way for another combination, or cannot
        run.
        """
        path = self._folders.setdefault(trial.content, self.folder.trial(trial.name))
        if path.name in self._running:
            self._running[path.name].append(trial)
            return True
        outcome = read_state(path).outcome
        if outcome is not None and self._counts(outcome):
            write_facts(path, _facts(trial, read_facts(path).planned_peak_bytes))
            self._ended(trial, is_reused=True)
            return True
        if outcome is not None:
            reopen(path)
        if trial.asked is None:
            self._decide(trial, TaskOutcome(kind="refused", reason=trial.refusal))
        return trial.asked is None

    def _start(self, trial: SweepTrial) -> None:
        plan = self.forecasts.plan(trial)
        if self.asked.file.skip_unfit and not self._is_frontier():
            estimate = self.forecasts.estimate(trial)
            if estimate is not None and estimate.low_bytes > 0:
                self._decide(trial, _predicted(estimate), plan)
                return
        task = self._task(trial, plan)
        write_facts(task.folder, _facts(trial, planned_peak_bytes(plan)))
        self._running[task.name] = [trial]
        self.executor.submit(task)

    def _counts(self, outcome: TaskOutcome) -> bool:
        """Whether an earlier outcome is the trial's result."""
        if outcome.kind == "done":
            return True
        if outcome.kind == "never started" or (outcome.kind == "predicted not to fit" and self._is_frontier()):
            return False
        return not self.retries_failed

    def _is_frontier(self) -> bool:
        return isinstance(self.asked.file.strategy, FrontierStrategy)

    def _decide(self, trial: SweepTrial, outcome: TaskOutcome, plan: Plan | None = None) -> None:
        """Records an outcome without running the trial."""
        task = self._task(trial, plan)
        write_facts(task.folder, _facts(trial, planned_peak_bytes(plan)))
        write_task(task)
        write_outcome(task.folder, outcome)
        self._ended(trial, is_reused=False)

    def _record_predictions(self, strategy: Any) -> None:
        """Sizes that a frontier did not run, because their forecast does not fit."""
        predicted = getattr(strategy, "predicted", None)
        for point in [] if predicted is None else predicted(tuple(self._points)):
            for seed in self.asked.file.seeds:
                trial = self._trial(point, seed)
                path = self._folders.setdefault(trial.content, self.folder.trial(trial.name))
                if read_state(path).outcome is not None:
                    self._ended(trial, is_reused=True)
                    continue
                estimate = self.forecasts.estimate(trial)
                if estimate is not None:
                    self._decide(trial, _predicted(estimate), self.forecasts.plan(trial))

    def _task(self, trial: SweepTrial, plan: Plan | None) -> Task:
        file, path = self.asked.file, self._folders[trial.content]
        parallel = Parallel() if trial.asked is None else trial.asked.experiment.parallel
        evaluation = None if file.evaluate is None else evaluation_fields(file.evaluate, parallel.device)
        request = TrialRequest(
            measure=file.measure,
            experiment={} if trial.asked is None else trial.asked.as_asked,
            name=self.asked.name,
            folder=str(path.absolute()),
            about={"sweep": {"name": self.asked.name, "trial": path.name, "labels": dict(trial.labels)}},
            plan=None if plan is None else plan.to_mapping(),
            is_synthetic=file.synthetic_data,
            evaluation=evaluation,
        )
        host_gib = file.limits.host_gib
        return Task(
            name=path.name,
            worker=self.worker,
            request=request.to_mapping(),
            folder=path,
            resources=resources_of(parallel, file.resources, is_here=self.executor.name == "local"),
            limits=Limits(seconds=file.limits.seconds, host_bytes=None if host_gib is None else round(host_gib * GIB)),
        )

    def _collect(self) -> None:
        """Waits until a trial ends, or for a moment."""
        if not self._running:
            return
        for name in self.executor.ended(_LOOK_EVERY_S):
            for trial in self._running.pop(name, ()):
                self._ended(trial, is_reused=False)

    def _ended(self, trial: SweepTrial, *, is_reused: bool) -> None:
        file = self.asked.file
        result = read_result(self._folders[trial.content], epoch_samples=file.epoch_samples)
        assert result is not None, "it has an outcome"
        result = dataclasses.replace(
            result, labels=trial.labels, is_reused=is_reused, usd=spent_usd(result, self.usd_per_hour)
        )
        self._results.append(result)
        if not is_reused and result.outcome.seconds > 0:
            self._seconds.append(result.outcome.seconds)
        of_point = self._open_points.setdefault(trial.point, [])
        of_point.append(result)
        if len(of_point) == len(file.seeds):
            self._points.append(point_result(self._open_points.pop(trial.point), self.usd_per_hour, file.measure))
        self.watcher.ended(result, self._progress())

    def _progress(self) -> SweepProgress:
        num_planned = None if self._num_planned is None else self._num_planned * len(self.asked.file.seeds)
        left_s = None
        if self._seconds and num_planned is not None:
            slots = self.executor.num_slots or max(len(self._running), 1)
            num_left = max(num_planned - len(self._results), 0)
            left_s = sum(self._seconds) / len(self._seconds) * num_left / slots
        spent = [result.usd for result in self._results if result.usd is not None]
        return SweepProgress(
            num_ended=len(self._results),
            num_planned=num_planned,
            running=tuple(self._running_text(trials[0]) for trials in self._running.values()),
            left_s=left_s,
            usd=sum(spent) if spent else None,
        )

    def _running_text(self, trial: SweepTrial) -> str:
        named = " ".join(f"{axis_word(axis)} {label}" for axis, label in trial.labels.items())
        progress = read_progress(self._folders[trial.content])
        if progress is None:
            return named
        what, done, total = progress
        return f"{named}: {what}" + (f" {done} of {total}" if total else "")


def _facts(trial: SweepTrial, planned_bytes: int | None) -> TrialFacts:
    return TrialFacts(
        content=trial.content,
        labels=dict(trial.labels),
        changes=dict(trial.changes),
        seed=trial.seed,
        num_devices=None if trial.asked is None else trial.asked.experiment.parallel.devices,
        planned_peak_bytes=planned_bytes,
    )


def _predicted(estimate: MemoryExcess) -> TaskOutcome:
    return TaskOutcome(
        kind="predicted not to fit",
        reason=f"The memory estimate is at least {bytes_text(estimate.low_bytes)} above what a trial may take.",
    )


@contextmanager
def _only_controller(folder: SweepFolder) -> Iterator[None]:
    with folder.lock.open("w") as file:
        if not try_lock(file.fileno()):
            raise UserError(
                f"Another process runs the sweep in {folder.path}. Wait for it, or start another one: --new"
            )
        yield
