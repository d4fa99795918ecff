"""What the folder of a trial adds to the row of its run, or says alone where it made no run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune.analyse.run_index.cells import NO_RECORD, Row, flat
from foretune.core.input_files import MOST_JSON_BYTES, read_json
from foretune.executors.outcome import TaskOutcome
from foretune.executors.task_files import OUTCOME, TASK
from foretune.sweeps.trial_facts import TRIAL

_MOST_SETTINGS = 300


def is_trial(folder: Path) -> bool:
    """Whether a folder is that of a trial: a task of a sweep."""
    return any(os.path.lexists(folder / name) for name in (TASK, OUTCOME, TRIAL))


def trial_row(folder: Path) -> Row:
    """A trial without a run: how it ended, and what was requested of it.

    Raises ValueError, `RefusedFile` or OSError where a file of it is damaged, as `outcome_row` does.
    """
    ended = outcome_row(folder)
    status = {"status": NO_RECORD} if "outcome" not in ended else {}
    return _requested(folder) | {"kind": "trial"} | status | ended


def outcome_row(folder: Path, *, has_record: bool = False) -> Row:
    """How a trial ended. Of a run that has no record, this is how it ended, too."""
    row: Row = {"trial": folder.name}
    fields = read_mapping(folder / OUTCOME)
    if fields is None:
        return row
    outcome = outcome_of(fields)
    row |= {"outcome": outcome.kind, "attempts": outcome.num_attempts, "trial_s": outcome.seconds}
    return row if has_record else row | {"status": outcome.kind, "reason": outcome.reason}


def outcome_of(fields: Mapping[str, Any]) -> TaskOutcome:
    """Raises ValueError where it is none."""
    try:
        return TaskOutcome.from_mapping({key: value for key, value in fields.items() if key != "version"})
    except (TypeError, LookupError) as error:
        raise ValueError(f"{OUTCOME} is damaged: {error}") from error


def read_mapping(path: Path) -> Mapping[str, Any] | None:
    """A JSON file of a trial; None where it is not there."""
    if not os.path.lexists(path):
        return None
    content = read_json(path, MOST_JSON_BYTES, within=path.parent)
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no fields")
    return content


def _requested(folder: Path) -> Row:
    """The settings as requested, without defaults, and what the trial changes in them."""
    task, facts = read_mapping(folder / TASK) or {}, read_mapping(folder / TRIAL) or {}
    request = task.get("request")
    experiment = request.get("experiment") if isinstance(request, dict) else None
    settings = [*flat(experiment if isinstance(experiment, dict) else {}), *flat(_mapping(facts.get("changes")))]
    return dict(settings[:_MOST_SETTINGS])


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
