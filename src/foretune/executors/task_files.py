"""The files of a task's folder. They are the whole state: any process can read it from them.

- `task.json`: as it was submitted last
- `attempts/1.json`: who performs it, written by the worker before it begins
- `attempts/1.ending.json`: why the attempt was requested to end, written before it is
- `attempts/1.interrupted.json`: it ended without an outcome, and can be performed again
- `failures/2.json`: why the process of rank 2 failed, where several perform the task
- `task.lock`: held by the worker while it lives
- `log.txt`: what all attempts printed
- `answer.json`: what `perform` returned
- `outcome.json`: how the task ended; written once, last
"""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from foretune.core.input_files import read_json
from foretune.core.units import MIB
from foretune.executors.outcome import OutcomeKind, TaskOutcome
from foretune.executors.process_identity import own_identity
from foretune.executors.task import Task
from foretune.record.atomic import sync_directory, write_text
from foretune.record.redaction import redacted_text

TASK, ANSWER, OUTCOME, LOG, ATTEMPTS = "task.json", "answer.json", "outcome.json", "log.txt", "attempts"
_FAILURES = "failures"
_VERSION = 1
_MOST_JSON_BYTES = 256 * MIB
_MOST_TAIL_BYTES = 64 * 1024
_MOST_LINE_LETTERS = 500
NUM_LOG_LINES = 20
"""How many of the log's last lines an outcome keeps."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process that performs, or performed, the task."""

    number: int
    submission: str
    """Which submission of the task it belongs to."""
    host: str
    boot: str | None
    pid: int
    process_start: int | None
    slurm_job: str | None
    started_at: float
    """Seconds since 1970."""


def write_task(task: Task) -> None:
    """Writes the task for a worker to find.

    It must be exact, so that secrets in it stay until the task has ended: only its owner can read the file until then.
    """
    task.folder.mkdir(parents=True, exist_ok=True)
    text = task.to_json(version=_VERSION, submission=uuid.uuid4().hex)
    temporary = task.folder / f".{TASK}.{os.getpid()}.writing"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(task.folder / TASK)
    sync_directory(task.folder)


def read_task(folder: Path) -> Task:
    fields = _read(folder / TASK)
    del fields["version"], fields["submission"]
    return Task.from_mapping(fields, folder)


def begin_attempt(folder: Path) -> Attempt:
    """Records that this process performs the task now."""
    attempts = folder / ATTEMPTS
    attempts.mkdir(exist_ok=True)
    _remove_earlier_failures(folder)
    attempt = Attempt(
        number=len(read_attempts(folder)) + 1,
        submission=_read(folder / TASK)["submission"],
        slurm_job=os.environ.get("SLURM_JOB_ID"),
        started_at=time.time(),
        **own_identity(),
    )
    _write_once(attempts / f"{attempt.number}.json", asdict(attempt))
    return attempt


def read_attempts(folder: Path) -> list[Attempt]:
    """All attempts, oldest first."""
    paths = (path for path in (folder / ATTEMPTS).glob("*.json") if path.stem.isdigit())
    return [Attempt(**_read(path)) for path in sorted(paths, key=lambda path: int(path.stem))]


def num_attempts_of_submission(folder: Path) -> int:
    """Attempts since the task was submitted last."""
    submission = _read(folder / TASK)["submission"]
    return sum(attempt.submission == submission for attempt in read_attempts(folder))


def mark_ending(folder: Path, number: int, why: str) -> None:
    """Records that an attempt is requested to end, before it is."""
    _write_once(folder / ATTEMPTS / f"{number}.ending.json", {"why": why})


def read_ending(folder: Path, number: int) -> str | None:
    """Why an attempt was requested to end; None if it was not."""
    return _read_why(folder / ATTEMPTS / f"{number}.ending.json")


def mark_interrupted(folder: Path, number: int, why: str) -> None:
    """Records that an attempt ended without an outcome, and that the task can be performed again."""
    _write_once(folder / ATTEMPTS / f"{number}.interrupted.json", {"why": why})


def read_interruption(folder: Path, number: int) -> str | None:
    return _read_why(folder / ATTEMPTS / f"{number}.interrupted.json")


def write_rank_failure(folder: Path, rank: int, kind: OutcomeKind, reason: str) -> None:
    """Records why a process beside the first one failed."""
    (folder / _FAILURES).mkdir(exist_ok=True)
    text = json.dumps({"kind": kind, "reason": reason, "at": time.time(), "launch": _launch()})
    write_text(folder / _FAILURES / f"{rank}.json", text)


def _remove_earlier_failures(folder: Path) -> None:
    """Those of earlier attempts. A process may fail before the first one begins: that failure is of this attempt."""
    launch = _launch()
    for path in (folder / _FAILURES).glob("*.json"):
        if launch is None or _read(path).get("launch") != launch:
            path.unlink()


def _launch() -> str | None:
    """What the processes of one attempt share: SLURM's job, and how often it was requeued."""
    job = os.environ.get("SLURM_JOB_ID")
    return None if job is None else f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"


def first_rank_failure(folder: Path) -> tuple[OutcomeKind, str] | None:
    """What failed first in the processes beside the first one: it sees only that a connection is gone."""
    failures = [_read(path) for path in (folder / _FAILURES).glob("*.json")]
    first = min(failures, key=lambda failure: failure["at"], default=None)
    return None if first is None else (first["kind"], first["reason"])


def write_answer(folder: Path, answer: dict[str, Any]) -> None:
    write_text(folder / ANSWER, json.dumps(answer, indent=1) + "\n")


def read_answer(folder: Path) -> dict[str, Any]:
    """What `perform` returned. Raises FileNotFoundError where it did not."""
    answer: dict[str, Any] = read_json(folder / ANSWER, _MOST_JSON_BYTES)
    return answer


def write_outcome(folder: Path, outcome: TaskOutcome) -> bool:
    """Records how the task ended. False where that is known already: the first outcome stays."""
    folder.mkdir(parents=True, exist_ok=True)
    is_first = _write_once(folder / OUTCOME, {"version": _VERSION, **outcome.to_mapping()})
    _remove_secrets(folder / TASK)
    return is_first


def read_outcome(folder: Path) -> TaskOutcome | None:
    """How the task ended; None where it did not yet."""
    try:
        fields = _read(folder / OUTCOME)
    except FileNotFoundError:
        return None
    del fields["version"]
    return TaskOutcome.from_mapping(fields)


def open_log(folder: Path) -> BinaryIO:
    """What all processes of the task print goes there, behind what earlier ones did."""
    return (folder / LOG).open("ab")


def last_log_lines(folder: Path) -> tuple[str, ...]:
    """The last lines that the task printed, without secrets and empty lines."""
    return last_lines(folder / LOG)


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines of a log, without secrets and empty lines; none where there is no log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST_TAIL_BYTES))
            text = file.read(_MOST_TAIL_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ()
    # A progress bar writes over its line: what stood there last is what a person saw.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in redacted_text(text).split("\n")]
    return tuple(line[:_MOST_LINE_LETTERS] for line in lines if line)[-NUM_LOG_LINES:]


def _remove_secrets(path: Path) -> None:
    """A task that has ended is not performed again, and its folder may travel."""
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text(encoding="utf-8")
        if redacted_text(text) != text:
            write_text(path, text)


def _write_once(path: Path, fields: Mapping[str, Any]) -> bool:
    """Writes a file that is complete from the moment it is there. False where there was one."""
    if path.exists():
        return False
    # Processes of two machines may have the same number.
    complete = path.with_name(f".{path.name}.{uuid.uuid4().hex}.complete")
    write_text(complete, json.dumps(fields, indent=1) + "\n")
    try:
        # Unlike a rename, this fails where another process was first.
        os.link(complete, path)
    except FileExistsError:
        return False
    except OSError:
        complete.rename(path)  # a file system without hard links
    finally:
        complete.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def _read_why(path: Path) -> str | None:
    try:
        return str(_read(path)["why"])
    except FileNotFoundError:
        return None


def _read(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = read_json(path, _MOST_JSON_BYTES)
    return fields
