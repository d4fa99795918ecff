"""How far a task is: a small file that it writes and the controller reads, on whatever machine either runs."""

import json
import time
from pathlib import Path

from foretune.core.observer import Observer, StepReport

PROGRESS = "progress.json"
_WRITTEN_EVERY_S = 1.0
_MOST_BYTES = 4096


class ProgressFile(Observer):
    """Writes what the task does, at most once a second."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._last_s = float("-inf")

    def preparing(self, what: str, done: int, total: int) -> None:
        self._write(what, done, total)

    def stepped(self, report: StepReport) -> None:
        done = report.step + 1
        more = 0 if report.num_steps is not None else round((report.left_s or 0.0) / max(report.step_s, 1e-9))
        self._write("steps", done, report.num_steps or done + more)

    def _write(self, what: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s < _WRITTEN_EVERY_S:
            return
        self._last_s = now_s
        # Nothing depends on it, so it need not survive a power cut; a reader may see it while it is written.
        self._path.write_text(json.dumps([what, done, total]), encoding="utf-8")


def read_progress(folder: Path) -> tuple[str, int, int] | None:
    """What a task does and how far it is; None where it does not say."""
    try:
        with (folder / PROGRESS).open(encoding="utf-8") as file:
            what, done, total = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, TypeError):
        return None
    return str(what), int(done), int(total)
