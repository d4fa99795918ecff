"""One run as a flat row: every setting, and every figure that was measured or planned."""

import json
import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from foretune.analyse.evaluations import EVALUATION_FILE, evaluation_of
from foretune.analyse.run_data import run_kind
from foretune.analyse.run_index.cells import NO_RECORD, Cell, Row, flat
from foretune.analyse.run_index.trial_row import is_trial, outcome_row, trial_row
from foretune.choices.experiment import Experiment
from foretune.core.errors import UserError
from foretune.core.values import Evaluation, RunRecord
from foretune.record.event_tail import first_event_s, last_step
from foretune.record.run_directory import RunDirectory
from foretune.record.stored_experiment import read_stored

UNREADABLE = "unreadable"
_MOST_LETTERS = 1000
"""Of a text; prompts and reasons can be longer."""
_MOST_SCORES = 200
_MOST_INTEGER = 2**63 - 1
"""SQLite stores no larger one."""
ALWAYS_COLUMNS = (
    "run", "model", "status", "reason", "steps", "started", "kind", "device", "memory_bytes", "held_out_loss",
)  # fmt: skip
"""Columns that can be named even where no run has a value in them."""


def row_of(folder: Path) -> Row:
    """The row of a run directory, or of a trial without one.

    A damaged run is a row, too: its status says so, and its reason why.
    """
    row: Row = {"run": folder.name}
    try:
        if not os.path.lexists(folder / "experiment.yaml"):
            return _cells(row | trial_row(folder))
        experiment, effective = read_stored(folder / "experiment.yaml", within=folder)
        row |= _settings(experiment)
        row |= _facts(effective)
        record = RunDirectory(folder).read_record()
        row |= _without_record(folder) if record is None else _recorded(record)
        if record is not None and os.path.lexists(folder / EVALUATION_FILE):
            evaluation = evaluation_of(folder)
            row |= {} if evaluation is None else _scores(evaluation)
        row["started"] = _started(folder)
        if is_trial(folder.parent):
            row |= outcome_row(folder.parent, has_record=record is not None)
    except (UserError, OSError, ValueError) as error:
        row |= {"status": UNREADABLE, "reason": str(error)}
    return _cells(row)


def _cells(row: Row) -> Row:
    """As they are stored: nothing that is absent, nothing that is too long."""
    return {
        name: value if type(value) is int and -_MOST_INTEGER <= value <= _MOST_INTEGER else _short(value)
        for name, value in row.items()
        if value is not None
    }


def _settings(experiment: Experiment) -> Row:
    row: Row = {}
    for name, field in Experiment.model_fields.items():
        key, section = field.alias or name, getattr(experiment, name)
        if isinstance(section, BaseModel):
            # Most runs share most of their sections, so each is flattened once.
            row.update(_section(key, section.model_dump_json(by_alias=True)))
        else:
            row.update(flat(list(section) if isinstance(section, tuple) else section, key))
    return row


@lru_cache(maxsize=8192)
def _section(key: str, text: str) -> tuple[tuple[str, Cell], ...]:
    return tuple(flat(json.loads(text), key))


def _facts(effective: Mapping[str, Any]) -> Row:
    kind = run_kind(effective)
    row: Row = {"kind": "train" if kind == "training" else kind}
    for name in ("family", "device", "num_train_samples", "data_fingerprint", "model_revision"):
        value = effective.get(name)
        if isinstance(value, (str, int)):
            row[name] = value
    study = effective.get("study")
    if isinstance(study, Mapping):
        row |= dict(flat({key: value for key, value in study.items() if isinstance(value, (str, int))}, "study"))
    return row


def _recorded(record: RunRecord) -> Row:
    measured, plan = record.measured, record.plan
    row: Row = {
        "status": record.outcome.status,
        "reason": record.outcome.reason,
        "steps": record.outcome.steps_done,
        "wall_s": record.wall_s,
        "question": record.question_hash,
        "experiment": record.experiment_hash,
        "environment": record.environment_hash,
        "num_params": record.num_params,
        "num_trainable_params": record.num_trainable_params,
        "num_warnings": len(record.warnings),
    }
    figures = json.loads(measured.model_dump_json(exclude={"held_out_losses"}))
    row |= dict(flat(figures))
    row["memory_bytes"] = measured.peak_host_bytes if measured.peak_device_bytes is None else measured.peak_device_bytes
    if measured.held_out_losses:
        row["held_out_loss"] = _number(measured.held_out_losses[-1][1])
    devices = (record.environment.get("torch") or {}).get("devices") or ()
    if devices and isinstance(devices[0], Mapping):
        row["device"] = str(devices[0].get("name", ""))
        memory_bytes = devices[0].get("memory_bytes")
        row["device_memory_bytes"] = memory_bytes if isinstance(memory_bytes, int) else None
    if plan is not None:
        peak = plan.at_peak
        row |= {
            "planned.memory_bytes": peak.process_bytes if measured.peak_device_bytes is None else peak.allocated_bytes,
            "planned.verdict": plan.verdict,
        }
        if plan.time is not None:
            row |= {"planned.step_s": plan.time.step_s, "planned.samples_per_s": plan.time.samples_per_s}
        if plan.cost is not None:
            row |= {"planned.usd": plan.cost.usd, "planned.total_s": plan.cost.total_s}
    return row


def _without_record(folder: Path) -> Row:
    return {"status": NO_RECORD, "steps": last_step(folder / "events.jsonl")}


def _scores(evaluation: Evaluation) -> Row:
    found = [score for score in evaluation.scores if score.column == "run" and score.value is not None]
    return {f"quality.{score.metric.replace(' ', '_')}": _number(score.value) for score in found[:_MOST_SCORES]}


def _started(folder: Path) -> str | None:
    """UTC, written so that text compares as time does."""
    started_s = first_event_s(folder / "events.jsonl")
    return None if started_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(started_s))


def _number(value: float | None) -> Cell:
    """SQLite would store NaN as nothing, and a loss that is not finite is something else than one not measured."""
    return str(value) if value is not None and not abs(value) < float("inf") else value


def _short(value: Cell) -> Cell:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str) and len(value) > _MOST_LETTERS:
        return value[: _MOST_LETTERS - 1] + "…"
    if isinstance(value, int) and abs(value) > _MOST_INTEGER:
        return str(value)
    return value
