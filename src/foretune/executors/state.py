"""Where a task stands, from its folder alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretune.executors.outcome import TaskOutcome
from foretune.executors.process_identity import is_alive
from foretune.executors.task_files import Attempt, read_attempts, read_interruption, read_outcome
from foretune.executors.task_lock import is_locked


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """Where a task stands."""

    kind: Literal["waiting", "running", "ended"]
    num_attempts: int = 0
    attempt: Attempt | None = None
    """The last one: of a running task, the process that performs it."""
    outcome: TaskOutcome | None = None
    """Of a task that has ended."""

    @property
    def was_interrupted(self) -> bool:
        """It was begun, nobody performs it, and it has no outcome."""
        return self.kind == "waiting" and self.attempt is not None


def read_state(folder: Path) -> TaskState:
    """Where the task of a folder stands. A folder that does not exist is that of a waiting task."""
    outcome = read_outcome(folder)
    attempts = read_attempts(folder)
    last = attempts[-1] if attempts else None
    if outcome is None and last is not None and _is_running(folder, last):
        return TaskState(kind="running", num_attempts=len(attempts), attempt=last)
    # Its worker may have written the outcome between the two looks.
    outcome = outcome or read_outcome(folder)
    kind: Literal["waiting", "ended"] = "waiting" if outcome is None else "ended"
    return TaskState(kind=kind, num_attempts=len(attempts), attempt=last, outcome=outcome)


def _is_running(folder: Path, attempt: Attempt) -> bool:
    if read_interruption(folder, attempt.number) is not None:
        return False
    locked = is_locked(folder)
    if locked is not None:
        return locked
    # Without locks only a process of this machine can be looked up; another machine's is taken to be alive.
    return is_alive(attempt.host, attempt.boot, attempt.pid, attempt.process_start) is not False
