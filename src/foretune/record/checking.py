"""Is a run directory whole and true to itself? Every number that can be computed twice is."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.core.input_files import MOST_JSON_BYTES, RefusedFile, read_bytes, read_json
from foretune.core.values import RunRecord, WrongFormat
from foretune.record.events import MOST_LOG_BYTES
from foretune.record.log_budget import budget_faults
from foretune.record.log_lines import Log, read_log
from foretune.record.log_numbers import clock_faults, step_faults, telemetry_faults, time_faults
from foretune.record.log_order import LoggedSchedule, LoggedSession, order_faults, sessions_in
from foretune.record.log_summary import identity_faults, measured_faults, outcome_faults, plan_faults
from foretune.record.run_directory import RunDirectory

_DIGESTS_SINCE_RECORD = 3


@dataclass(frozen=True)
class Checked:
    """What came of it."""

    path: Path
    faults: tuple[str, ...]
    """What cannot be in a directory that was written by a run and left alone."""
    notes: tuple[str, ...]
    """What is no fault, but should be known."""
    num_events: int
    num_steps: int
    num_sessions: int

    @property
    def is_valid(self) -> bool:
        return not self.faults


def check_run(path: Path) -> Checked:
    """Reads everything of a run directory but its weights and images."""
    run = RunDirectory.open(path)
    faults: list[str] = []
    notes: list[str] = []
    try:
        _, experiment, effective = run.read_experiment()
        record = run.read_record()
        plan = run.read_plan()
        environment = _environment(run)
    except WrongFormat as error:
        return Checked(path, (str(error),), (), 0, 0, 0)
    if record is not None and plan != record.plan:
        faults.append("record.json: its plan is not that of plan.json")
    if record is not None:
        faults += identity_faults(record, run.run_id, experiment, effective, environment)
    has_log = os.path.lexists(run.events)
    log = read_log(read_bytes(run.events, MOST_LOG_BYTES, within=run.path)) if has_log else Log()
    faults += log.faults
    sessions = sessions_in(log.events, faults)
    if not sessions:
        faults += _without_log(record)
    elif "num_steps" not in effective:
        faults.append("experiment.yaml: it does not record how many steps there are")
    else:
        faults += _log_faults(log, sessions, experiment, effective, environment)
        faults += [fault for session in sessions for fault in plan_faults(plan, session)]
        faults += _end_faults(run, record, log, sessions, experiment, effective, notes)
    steps = {event["step"] for session in sessions for event in session.of("step")}
    return Checked(path, tuple(faults), tuple(notes), len(log.events), len(steps), len(sessions))


def _log_faults(
    log: Log, sessions: list[LoggedSession], experiment: Experiment, effective: dict[str, Any], environment: Any
) -> Iterator[str]:
    logged = LoggedSchedule.of(experiment, effective, log.events)
    if experiment.train.steps is not None and experiment.train.steps != logged.num_steps:
        yield f"experiment.yaml: {logged.num_steps} steps followed from a train.steps of {experiment.train.steps}"
    if effective.get("samples_per_step", experiment.samples_per_step()) != experiment.samples_per_step():
        yield "experiment.yaml: samples_per_step does not follow from batch, accumulation and devices"
    yield from time_faults(log.events)
    yield from order_faults(sessions, logged)
    for session in sessions:
        yield from step_faults(session, experiment, logged.num_steps)
        yield from clock_faults(session)
        yield from telemetry_faults(session)
    if sessions[-1].started["environment"] != environment:
        yield f"line {sessions[-1].started['line']}: the environment is not that of environment.json"


def _end_faults(
    run: RunDirectory,
    record: RunRecord | None,
    log: Log,
    sessions: list[LoggedSession],
    experiment: Experiment,
    effective: dict[str, Any],
    notes: list[str],
) -> Iterator[str]:
    ended = sessions[-1].ended
    if record is None:
        if ended is not None:
            yield "record.json is missing, though the log records how the run ended"
        notes.append(f"The run was stopped without warning, or still goes on. Next: foretune resume {run.path}")
        return
    if log.is_cut_short:
        yield "events.jsonl: the last line is not whole"
    if ended is not None and "digest" not in ended:
        if _version(run) >= _DIGESTS_SINCE_RECORD:
            yield f"line {ended['line']}: the end has no digest of the lines before it"
        else:
            notes.append("Written before logs had a digest: a change that makes sense everywhere would not be seen.")
    yield from outcome_faults(record, sessions[-1], effective["num_steps"])
    yield from measured_faults(record, sessions, experiment)
    yield from budget_faults(record, sessions, experiment.train)


def _without_log(record: RunRecord | None) -> Iterator[str]:
    """Only a run that failed before its first step has no log."""
    if record is None:
        yield "events.jsonl: no run was started, and there is no record of the reason"
    elif record.outcome.status not in ("failed", "out of memory") or record.outcome.steps_done:
        yield f"events.jsonl: no run was started, but record.json says {record.outcome.status}"


def _environment(run: RunDirectory) -> Any:
    path = run.path / "environment.json"
    try:
        environment = read_json(path, MOST_JSON_BYTES, within=run.path)
    except (OSError, ValueError, RefusedFile) as error:
        raise WrongFormat(f"{path} is not the environment of a run: {error}") from error
    if not isinstance(environment, dict):
        raise WrongFormat(f"{path} is not the environment of a run: it is {type(environment).__name__}, not an object")
    return environment


def _version(run: RunDirectory) -> int:
    return int(read_json(run.path / "record.json", MOST_JSON_BYTES, within=run.path)["format_version"])
