"""The last lines of what failed: of its log, or of the traceback in its events."""

from pathlib import Path

from foretune.analyse.run_index.trial_row import is_trial, outcome_of, read_mapping
from foretune.core.errors import UserError
from foretune.executors.task_files import OUTCOME
from foretune.record.event_tail import last_events

MOST_LINES = 5
_MOST_LETTERS = 300


def last_lines(folder: Path) -> tuple[str, ...]:
    """Of a run directory or a trial; empty where nothing was kept."""
    trial = next((place for place in (folder, folder.parent) if is_trial(place)), None)
    lines: tuple[str, ...] = () if trial is None else _of_outcome(trial)
    if not lines:
        crashes = [event.get("traceback") for event in last_events(folder / "events.jsonl")]
        texts = [text for text in crashes if isinstance(text, str)]
        lines = tuple(line for line in texts[-1].splitlines() if line.strip()) if texts else ()
    return tuple(line[:_MOST_LETTERS] for line in lines[-MOST_LINES:])


def _of_outcome(trial: Path) -> tuple[str, ...]:
    try:
        fields = read_mapping(trial / OUTCOME)
        return () if fields is None else tuple(map(str, outcome_of(fields).log_lines))
    except (UserError, OSError, ValueError):
        return ()
