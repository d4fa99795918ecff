"""One training that has no record yet: how far it is, and whether anybody works on it."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.analyse.run_data import RunKind, run_kind
from foretune.analyse.watching.device_price import usd_per_hour_of
from foretune.choices.experiment import Experiment
from foretune.core.errors import UserError
from foretune.core.input_files import MOST_JSON_BYTES, read_json
from foretune.core.values import Plan
from foretune.record.event_tail import first_event_s, last_events
from foretune.record.locking import is_held, is_of_this_machine
from foretune.record.run_directory import RunDirectory
from foretune.record.stored_experiment import read_stored

SILENT_AFTER_S = 60.0
"""Without an event for so long, a process that cannot be looked up is not taken to be alive. Sensors write an event
every second."""
_SILENT_AFTER_STEPS = 5
_FURTHER_BYTES = 2**20
"""Read where the end of a log has no step: a long validation writes only what sensors read."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What does not change while a run goes on."""

    experiment: Experiment
    kind: RunKind
    num_steps: int | None
    """None where the length of the training is a time."""
    plan: Plan | None
    usd_per_hour: float | None
    """Of all its devices."""

    @classmethod
    def of(cls, folder: Path, usd_per_hour: float | None) -> "RunFacts":
        """Raises `UserError` or OSError where a file of the run cannot be read."""
        experiment, effective = read_stored(folder / "experiment.yaml", within=folder)
        num_steps = effective.get("num_steps")
        price = _catalogue_price(folder) if usd_per_hour is None else usd_per_hour
        return cls(
            experiment=experiment,
            kind=run_kind(effective),
            num_steps=num_steps if isinstance(num_steps, int) and experiment.train.seconds is None else None,
            plan=RunDirectory(folder).read_plan(),
            usd_per_hour=None if price is None else price * experiment.parallel.devices,
        )


@dataclass(frozen=True, kw_only=True)
class WatchedRun:
    """How far a training is. None is "not known"."""

    path: str
    """Relative to the folder that is watched."""
    model: str
    kind: RunKind
    is_running: bool
    """Whether a process works on it, as far as can be known from here."""
    last_sign_s: float | None
    """When it last showed that it is alive, in seconds since 1970."""
    started_s: float | None
    """When the process began that works on it, or was the last to."""
    steps_done: int | None = None
    num_steps: int | None = None
    samples_per_s: float | None = None
    planned_samples_per_s: float | None = None
    loss: float | None = None
    memory_bytes: int | None = None
    planned_memory_bytes: int | None = None
    elapsed_s: float | None = None
    left_s: float | None = None
    usd_per_hour: float | None = None

    @property
    def usd(self) -> float | None:
        """Spent since its process began."""
        if self.usd_per_hour is None or self.elapsed_s is None:
            return None
        return self.usd_per_hour * self.elapsed_s / 3600


def watched_run(folder: Path, path: str, facts: RunFacts, now_s: float, *, task_runs: bool | None = None) -> WatchedRun:
    """The run as its files are now. `task_runs`: whether its task is being performed; None where it is of no task."""
    events = last_events(folder / "events.jsonl")
    steps = _steps(events)
    if not steps and events:
        steps = _steps(last_events(folder / "events.jsonl", _FURTHER_BYTES))
    step_s = statistics.median(step["step_s"] for step in steps) if steps else None
    last_sign_s = events[-1]["time_s"] if events else None
    started_s = _started_s(folder)
    if last_sign_s is None:
        last_sign_s = started_s
    silent_after_s = max(SILENT_AFTER_S, _SILENT_AFTER_STEPS * (step_s or 0.0))
    is_fresh = last_sign_s is not None and now_s - last_sign_s < silent_after_s
    is_running = is_worked_on(folder, is_fresh=is_fresh) if task_runs is None else task_runs
    until_s = now_s if is_running else last_sign_s
    elapsed_s = max(0.0, until_s - started_s) if until_s is not None and started_s is not None else None
    done = steps[-1]["step"] + 1 if steps else None
    memory_bytes, is_device = _memory(steps)
    plan = facts.plan
    planned = None if plan is None else plan.at_peak.allocated_bytes if is_device else plan.at_peak.process_bytes
    return WatchedRun(
        path=path,
        model=facts.experiment.model,
        kind=facts.kind,
        is_running=is_running,
        last_sign_s=last_sign_s,
        started_s=started_s,
        steps_done=done,
        num_steps=facts.num_steps,
        samples_per_s=facts.experiment.samples_per_step() / step_s if step_s else None,
        planned_samples_per_s=plan.time.samples_per_s if plan is not None and plan.time is not None else None,
        loss=float(steps[-1]["loss"]) if steps else None,
        memory_bytes=memory_bytes,
        planned_memory_bytes=planned,
        elapsed_s=elapsed_s,
        left_s=_left_s(facts, steps, elapsed_s) if is_running else None,
        usd_per_hour=facts.usd_per_hour,
    )


def is_worked_on(folder: Path, *, is_fresh: bool) -> bool:
    """Whether a process works on a run directory, as far as can be known from here.

    A lock that is held is proof. One that is not held is proof of the contrary, unless the last holder was a process
    of another machine: locks of some network file systems do not reach here. Then, and where there is no lock, the log
    decides: `is_fresh` says whether it was written a moment ago.
    """
    lock = RunDirectory(folder).lock
    if not os.path.lexists(lock):
        return is_fresh
    held = is_held(lock)
    if held or is_of_this_machine(lock) is not False:
        return is_fresh if held is None else held
    return is_fresh


def _steps(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last steps in order, without those that were made again after a resume."""
    found: dict[int, Mapping[str, Any]] = {}
    for event in events:
        if event["kind"] == "started":
            first = event.get("first_step")
            found = {step: kept for step, kept in found.items() if isinstance(first, int) and step < first}
        elif event["kind"] == "step" and _is_step(event):
            found[event["step"]] = event
    return [found[step] for step in sorted(found)]


def _is_step(event: Mapping[str, Any]) -> bool:
    numbers = (event.get("step"), event.get("step_s"), event.get("loss"))
    return all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers) and (
        isinstance(event["step"], int) and event["step"] >= 0 and event["step_s"] > 0
    )


def _memory(steps: Sequence[Mapping[str, Any]]) -> tuple[int | None, bool]:
    """The most that was held in these steps, and whether that is of a device."""
    for place in ("device", "host"):
        held = [step["memory_bytes"].get(place) for step in steps if isinstance(step.get("memory_bytes"), dict)]
        known = [num_bytes for num_bytes in held if isinstance(num_bytes, int)]
        if known:
            return max(known), place == "device"
    return None, False


def _left_s(facts: RunFacts, steps: Sequence[Mapping[str, Any]], elapsed_s: float | None) -> float | None:
    """At the pace of the last steps, with the validations and saves between them."""
    limit_s = facts.experiment.train.seconds
    if limit_s is not None:
        return None if elapsed_s is None else max(0.0, limit_s - elapsed_s)
    if not steps or facts.num_steps is None:
        return None
    first, last = steps[0], steps[-1]
    between = last["step"] - first["step"]
    # Several steps are written at once, so that few of them say little about the time between them.
    passed_s = last["time_s"] - first["time_s"]
    mean_s = statistics.fmean(step["step_s"] for step in steps)
    pace_s = max(mean_s, passed_s / between) if between >= _FEWEST_FOR_PACE else mean_s
    num_left: int = max(0, facts.num_steps - last["step"] - 1)
    return float(pace_s * num_left)


_FEWEST_FOR_PACE = 20


def _started_s(folder: Path) -> float | None:
    """The lock was written when the process began. A copy of the folder may not have it, nor its time."""
    first_s = first_event_s(folder / "events.jsonl")
    try:
        locked_s = (folder / "run.lock").stat().st_mtime
    except OSError:
        return first_s
    return locked_s if first_s is None else max(first_s, locked_s)


def _catalogue_price(folder: Path) -> float | None:
    try:
        environment = read_json(folder / "environment.json", MOST_JSON_BYTES, within=folder)
    except (OSError, ValueError, UserError):
        return None
    return usd_per_hour_of(environment) if isinstance(environment, dict) else None
