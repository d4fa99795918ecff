"""What runs on a node of a cluster for each task: it starts the worker, watches it, and passes on requests to end.

A task on several nodes has one of these in each of its processes. The first one keeps the task's files; the others
only report why they failed.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from foretune.core.thread_waiting import with_passive_waiting
from foretune.executors import task_files as files
from foretune.executors.classifying import of_exit
from foretune.executors.memory_evidence import MemoryKills
from foretune.executors.state import read_state
from foretune.executors.task_lock import is_locked
from foretune.executors.watching import GRACE_S, Ended, WatchedWorker
from foretune.executors.worker import RANK_VARIABLE

_LOOK_EVERY_S = 0.1
LOST_LOCK_S = 300.0
"""How long a file server may keep the lock of a node that is lost."""


class TaskOnNode:
    """A task that this process performs, as one of several or alone."""

    def __init__(
        self, folder: Path, rank: int = 0, *, grace_s: float = GRACE_S, variables: Mapping[str, str] | None = None
    ) -> None:
        self._folder, self._rank, self._grace_s = folder, rank, grace_s
        self._variables = dict(variables or {})
        self._worker: WatchedWorker | None = None
        self._result: Ended | None = None

    def run(self) -> Ended:
        """Returns when the worker has ended. A failure of a process that is not the first one is its exit code."""
        if self._rank > 0:
            return self._run_beside()
        self._wait_for_lost_lock()
        num_before = read_state(self._folder).num_attempts
        with _blocked_signals():
            process = self._started()
            self._worker = WatchedWorker(files.read_task(self._folder), process.pid, num_before, self._grace_s)
            process.returncode = 0  # collected by its number
        while not self._look():
            time.sleep(_LOOK_EVERY_S)
        return self.result

    def _run_beside(self) -> Ended:
        """As one of several processes that is not the first."""
        before = MemoryKills.now()
        process = self._started()
        forwarded = _forward_signals(process.pid)
        code = process.wait()
        if code != 0 and not forwarded:
            if code < 0:  # it could not say itself why it failed
                log_lines, memory = files.last_log_lines(self._folder), MemoryKills.now().since(before)
                kind, reason = of_exit(code, log_lines, memory)
                files.write_rank_failure(self._folder, self._rank, kind, f"Process {self._rank}: {reason}")
            sys.exit(1)  # the launcher ends the others
        # The launcher ends the first process, which may have more to do, a while after another one has left.
        while read_state(self._folder).kind == "running":
            time.sleep(_LOOK_EVERY_S)
        return "ended"

    @property
    def result(self) -> Ended:
        assert self._result is not None, "the worker has not ended"
        return self._result

    def interrupt(self) -> Ended | None:
        """Requests the worker to end, so that the task can be continued elsewhere; returns when it has ended.

        For handlers of signals. None where the worker was not started yet.
        """
        if self._worker is None:
            return None
        if self._result is None:
            self._worker.end("interrupted")
        while not self._look():
            time.sleep(_LOOK_EVERY_S)
        return self.result

    def _look(self) -> bool:
        """Whether the worker has ended. The handler of a signal may come here while another call is waiting."""
        assert self._worker is not None
        with _blocked_signals():
            if self._result is None:
                if self._worker.has_exited():
                    self._result = self._worker.collect()
                else:
                    self._worker.act()
            return self._result is not None

    def _started(self) -> "subprocess.Popen[bytes]":
        variables = {**self._variables, RANK_VARIABLE: str(self._rank)}
        command = [sys.executable, "-P", "-m", "foretune.executors.worker", str(self._folder), str(os.getpid())]
        with files.open_log(self._folder) as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=with_passive_waiting({**os.environ, **variables}),
                start_new_session=True,
            )

    def _wait_for_lost_lock(self) -> None:
        """The file server may not know yet that the node of the last attempt is lost."""
        until_s = time.monotonic() + LOST_LOCK_S
        while files.read_outcome(self._folder) is None and is_locked(self._folder) and time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)


class _blocked_signals:  # noqa: N801 - used like a function
    """Handlers run afterwards. Only in the main thread, which alone runs them."""

    _SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)

    def __enter__(self) -> None:
        self._before: set[signal.Signals] | None = None
        if threading.current_thread() is threading.main_thread():
            self._before = {signal.Signals(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, self._SIGNALS)}

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def _forward_signals(pid: int) -> list[int]:
    """Returns the list in which the signals that were forwarded are going to be."""
    forwarded: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's signature
        forwarded.append(number)
        with suppress(ProcessLookupError):
            os.killpg(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    return forwarded


class SlurmTask:
    """What SLURM calls through submitit; submitit stores it by the name of its class and its fields."""

    def __init__(self, folder: str, grace_s: float) -> None:
        self.folder, self.grace_s = folder, grace_s
        self._task: TaskOnNode | None = None

    def __call__(self) -> str:
        rank = int(os.environ.get("SLURM_PROCID", "0"))
        self._task = TaskOnNode(Path(self.folder), rank, grace_s=self.grace_s)
        # submitit ignores SIGTERM, which announces a preemption where there is a grace, or `scancel`.
        signal.signal(signal.SIGTERM, self._terminate)
        return self._task.run()

    def checkpoint(self) -> Any:
        """Called by submitit before the job's time is over, or where the cluster announces a preemption so (USR2).

        Returns what the job performs when it is requeued; None where nothing is left to do.
        """
        from submitit.helpers import DelayedSubmission

        result = None if self._task is None else self._task.interrupt()
        return None if result == "ended" else DelayedSubmission(SlurmTask(self.folder, self.grace_s))

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """Whoever sent it decides what becomes of the job; the executor sees it."""
        assert self._task is not None
        self._task.interrupt()
