"""An executor that performs nothing: a function decides what comes of each task, at once and in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretune.config.reading import understand
from foretune.executors.outcome import TaskOutcome
from foretune.executors.state import read_state
from foretune.executors.task import Task
from foretune.executors.task_files import write_answer, write_outcome, write_task
from tests.analyse.made_runs import make_run

Decide = Callable[[dict[str, Any]], TaskOutcome]
"""From the experiment of a trial, as requested, to what comes of it."""
DONE = TaskOutcome(kind="done", num_attempts=1, seconds=2.0, host="here")


class FakeExecutor:
    """Remembers the order of what it performed. Raises after `most` tasks, as a controller that is killed stops."""

    name = "local"

    def __init__(self, decide: Decide = lambda _: DONE, *, slots: int | None = 1, most: int | None = None) -> None:
        self._decide, self.num_slots, self._most = decide, slots, most
        self._ended: list[str] = []
        self.performed: list[Task] = []
        self.notes: list[str] = []

    def submit(self, task: Task) -> None:
        if read_state(task.folder).outcome is None:
            if self._most is not None and len(self.performed) >= self._most:
                raise KeyboardInterrupt
            write_task(task)
            self.performed.append(task)
            self._perform(task)
        self._ended.append(task.name)

    def ended(self, timeout_s: float | None) -> list[str]:
        names, self._ended = self._ended, []
        return names

    def stop(self, name: str) -> None:
        raise AssertionError(f"nobody stops {name}")

    def close(self) -> None:
        """Nothing is held."""

    def _perform(self, task: Task) -> None:
        asked = task.request["experiment"]
        outcome = self._decide(asked)
        if outcome.kind == "done":
            experiment = understand(asked, source="test", name="x").experiment
            run = make_run(Path(task.request["folder"]) / "20260101-000000-00000000", [0.1] * 4, experiment=experiment)
            write_answer(task.folder, {"run": run.name})
        write_outcome(task.folder, outcome)
