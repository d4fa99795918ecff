"""Watches one worker process: ends it where it has to end, and records the outcome that it did not record itself."""

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretune.executors import task_files as files
from foretune.executors.classifying import of_exit, signal_name
from foretune.executors.memory_evidence import MemoryKills
from foretune.executors.outcome import OutcomeKind, TaskOutcome
from foretune.executors.task import Task

_LOOK_EVERY_S = 0.1
GRACE_S = 30.0
"""From SIGTERM to SIGKILL: a training finishes its step and saves meanwhile."""

EndingWhy = Literal["timed out", "stopped", "interrupted"]
"""Why a process is requested to end: its time is up, its result is not wanted, or it shall be continued later."""
Ended = Literal["ended", "interrupted", "elsewhere"]
"""What became of a worker: its task has an outcome; it can be performed again; another process performs it."""


@dataclass
class WatchedWorker:
    """A process that performs a task, leader of its own process group."""

    task: Task
    pid: int
    num_before: int
    """Attempts that the task had before this process was started."""
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        self._before = MemoryKills.now()
        self._ending: EndingWhy | None = None
        self._code: int | None = None
        self._due_s: float | None = None
        """When something has to be done: the limit of its time, later the end of the grace."""
        self._is_timed = self.task.limits.seconds is None
        """Whether its time runs: it does once the worker has begun, however long a busy machine takes to start it."""

    @property
    def folder(self) -> Path:
        return self.task.folder

    def due_in_s(self) -> float | None:
        """Until `act` has something to do; None: nothing unless the process ends."""
        if not self._is_timed:
            return _LOOK_EVERY_S
        return None if self._due_s is None else max(0.0, self._due_s - time.monotonic())

    def act(self) -> None:
        """Ends the process where its time is up, and kills it where its grace is over."""
        if not self._is_timed:
            self._start_clock()
        if self.due_in_s() != 0.0:
            return
        if self._ending is None:
            self.end("timed out")
        else:
            self._signal(signal.SIGKILL)
            self._due_s = None

    def end(self, why: EndingWhy) -> None:
        """Requests the process and its children to end; after the grace they are killed."""
        if self._ending is not None:
            return
        self._ending, self._is_timed = why, True
        attempt = self._attempt()
        if attempt is not None:
            # Before the signal: the worker must not take what it causes for a failure of the task.
            files.mark_ending(self.folder, attempt.number, why)
        self._due_s = time.monotonic() + self.grace_s
        self._signal(signal.SIGTERM)

    def _start_clock(self) -> None:
        attempt, seconds = self._attempt(), self.task.limits.seconds
        if attempt is not None and seconds is not None:
            self._is_timed, self._due_s = True, time.monotonic() + attempt.started_at + seconds - time.time()

    def has_exited(self) -> bool:
        """Whether the process has ended. It is not collected yet, so that its number still belongs to its group."""
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        # macOS before Python 3.13 can only collect it.
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self._code = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def collect(self) -> Ended:
        """After the process has exited: ends what it left behind, and sees to it that its task has an outcome."""
        self._signal(signal.SIGKILL)
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        code = self._code
        if files.read_outcome(self.folder) is not None:
            return "ended"
        attempt = self._attempt()
        if attempt is None:
            return self._never_began(code)
        if self._ending is None:
            interruption = files.read_interruption(self.folder, attempt.number)
            if interruption is not None:
                return interrupted(self.task, interruption)
        # A launcher ends the first process where another one failed.
        elif self._ending == "interrupted" and files.first_rank_failure(self.folder) is None:
            files.mark_interrupted(self.folder, attempt.number, "it was requested to end, to be continued later")
            return "interrupted"
        kind, reason = self._classified(code)
        is_exit = self._ending is None and code >= 0
        outcome = TaskOutcome(
            kind=kind,
            reason=reason,
            log_lines=files.last_log_lines(self.folder),
            exit_code=code if is_exit else None,
            signal=signal_name(code),
            num_attempts=attempt.number,
            seconds=time.time() - attempt.started_at,
            host=attempt.host,
        )
        files.write_outcome(self.folder, outcome)
        return "ended"

    def _classified(self, code: int) -> tuple[OutcomeKind, str]:
        if self._ending == "timed out":
            return "timed out", f"It took longer than its limit of {self.task.limits.seconds:g} s."
        if self._ending == "stopped":
            return "killed", "It was stopped on request."
        failure = files.first_rank_failure(self.folder)
        if failure is not None:
            return failure
        memory = MemoryKills.now().since(self._before)
        return of_exit(code, files.last_log_lines(self.folder), memory)

    def _never_began(self, code: int) -> Ended:
        """The worker performed nothing: another one does, or it failed before it could begin."""
        if code == 0:
            return "elsewhere"
        if self._ending == "interrupted":
            return "interrupted"
        how = of_exit(code, files.last_log_lines(self.folder), None)[1]
        is_stopped = self._ending == "stopped"
        reason = (
            "It was stopped on request before it began." if is_stopped else f"The worker ended before it began: {how}"
        )
        files.write_outcome(
            self.folder,
            TaskOutcome(
                kind="never started", reason=reason, log_lines=files.last_log_lines(self.folder), exit_code=code
            ),
        )
        return "ended"

    def _attempt(self) -> files.Attempt | None:
        """The attempt of this process, if it has begun one."""
        here = (socket.gethostname(), self.pid)
        begun = files.read_attempts(self.folder)[self.num_before :]
        return next((attempt for attempt in begun if (attempt.host, attempt.pid) == here), None)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            if self._code is None:
                os.kill(self.pid, number)  # a copy that has no group of its own yet
        except PermissionError:
            pass  # macOS: all processes of the group have ended


def never_started(folder: Path, reason: str, log_lines: tuple[str, ...] = ()) -> None:
    """Records that a task was not begun."""
    files.write_outcome(folder, TaskOutcome(kind="never started", reason=reason, log_lines=log_lines))


def interrupted(task: Task, why: str, kind: OutcomeKind = "killed") -> Ended:
    """Whether a task that was interrupted may be performed again; records the outcome where it may not."""
    if files.num_attempts_of_submission(task.folder) < task.max_attempts:
        return "interrupted"
    end_last_attempt(
        task, kind, f"It was interrupted in each of its {task.max_attempts} attempts; the last time: {why}."
    )
    return "ended"


def end_last_attempt(task: Task, kind: OutcomeKind, reason: str) -> None:
    """Records the outcome of a task whose last attempt left none, as this process sees it."""
    last = files.read_attempts(task.folder)[-1]
    outcome = TaskOutcome(
        kind=kind,
        reason=reason,
        log_lines=files.last_log_lines(task.folder),
        num_attempts=last.number,
        seconds=time.time() - last.started_at,
        host=last.host,
    )
    files.write_outcome(task.folder, outcome)
