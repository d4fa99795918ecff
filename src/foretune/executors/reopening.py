"""Forgets how a task ended, so that it is performed again."""

from pathlib import Path

from foretune.executors.task_files import ANSWER, OUTCOME


def reopen(folder: Path) -> None:
    """The outcome goes last: interrupted before that, the task has still ended."""
    (folder / ANSWER).unlink(missing_ok=True)
    (folder / OUTCOME).unlink(missing_ok=True)
