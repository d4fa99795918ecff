"""The process of a task: `python -P -m foretune.executors.worker FOLDER [PARENT_PID]`.

Whoever starts it, and however often: it does nothing unless it can take the lock and there is no outcome. It expects
that what it prints goes to the task's log.
"""

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from foretune.core.given_devices import give_devices
from foretune.core.memory_limit import lift_memory_limit, limit_memory
from foretune.core.observer import Observer
from foretune.executors import task_files as files
from foretune.executors.classifying import of_exception
from foretune.executors.outcome import TaskFailed, TaskInterrupted, TaskOutcome
from foretune.executors.parent_death import end_with_parent
from foretune.executors.task import Task
from foretune.executors.task_lock import release_lock, take_lock

RANK_VARIABLE = "FORETUNE_TASK_RANK"
"""Of a task that several processes perform, on several nodes: which one this is. The first one keeps the files."""
_CAUSE_S = 30.0
"""How long the report of a failed process may take to be seen from another node."""
_LOOK_EVERY_S = 0.1

Perform = Callable[[dict[str, Any], Observer], dict[str, Any]]


def work(folder: Path) -> int:
    """Performs the task of a folder, unless it has ended or another process performs it. Returns the exit code."""
    rank = int(os.environ.get(RANK_VARIABLE, "0"))
    if rank > 0:
        return _work_beside(folder, rank)
    if not take_lock(folder):
        return 0
    try:
        # The last process may have ended it between our start and our lock.
        if files.read_outcome(folder) is not None:
            return 0
        attempt = files.begin_attempt(folder)
        _prepare_output(attempt)
        task = files.read_task(folder)
        try:
            _limit(task)
            answer = _perform_of(task.worker)(task.request, _LogObserver())
            files.write_answer(folder, answer)
        except TaskInterrupted as error:
            files.mark_interrupted(folder, attempt.number, str(error) or "it was requested to stop")
            return 1
        except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes the outcome
            if isinstance(error, TaskFailed) and error.is_of_another:
                _keep_failure_of_another(folder, attempt, error)
            else:
                _keep_failure(folder, attempt, error)
            return 1
        files.write_outcome(folder, _outcome(attempt, kind="done"))
        return 0
    finally:
        release_lock(folder)


def _work_beside(folder: Path, rank: int) -> int:
    """Performs the task together with the first process, which answers. Only a failure is kept."""
    if files.read_outcome(folder) is not None:
        return 0
    task = files.read_task(folder)
    try:
        _limit(task)
        _perform_of(task.worker)(task.request, Observer())
    except TaskInterrupted:
        return 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes the outcome
        lift_memory_limit()
        traceback.print_exc()
        if not (isinstance(error, TaskFailed) and error.is_of_another):
            kind, reason = of_exception(error)
            files.write_rank_failure(folder, rank, kind, f"Process {rank}: {reason}")
        return 1
    return 0


def _keep_failure_of_another(folder: Path, attempt: files.Attempt, error: TaskFailed) -> None:
    """The process that failed first reports why, a moment before or after this one. Where none does, its node is lost:
    the task can be performed again.
    """
    traceback.print_exc()
    until_s = time.monotonic() + _CAUSE_S
    while (failure := files.first_rank_failure(folder)) is None and time.monotonic() < until_s:
        if files.read_ending(folder, attempt.number) is not None:
            return  # whoever requested the end knows the outcome
        time.sleep(_LOOK_EVERY_S)
    if failure is None:
        files.mark_interrupted(folder, attempt.number, error.reason)
        return
    kind, reason = failure
    files.write_outcome(folder, _outcome(attempt, kind=kind, reason=reason, log_lines=files.last_log_lines(folder)))


def _keep_failure(folder: Path, attempt: files.Attempt, error: BaseException) -> None:
    lift_memory_limit()
    traceback.print_exc()
    sys.stderr.flush()
    if files.read_ending(folder, attempt.number) is not None:
        return  # it fails because it was requested to end; whoever requested that knows the outcome
    kind, reason = of_exception(error)
    files.write_outcome(folder, _outcome(attempt, kind=kind, reason=reason, log_lines=files.last_log_lines(folder)))


def _outcome(attempt: files.Attempt, **fields: Any) -> TaskOutcome:
    sys.stdout.flush()
    return TaskOutcome(
        num_attempts=attempt.number, seconds=time.time() - attempt.started_at, host=attempt.host, **fields
    )


def _perform_of(module: str) -> Perform:
    perform: Perform = import_module(module).perform
    return perform


def _limit(task: Task) -> None:
    give_devices(task.resources.num_devices)
    limit_memory(task.limits.host_bytes)
    num_cpus = task.resources.num_cpus
    if num_cpus is not None:
        os.environ["OMP_NUM_THREADS"] = str(num_cpus)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(num_cpus)  # a copy of a process that has read the variable already


def _prepare_output(attempt: files.Attempt) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    # A segmentation fault leaves the stack in the log.
    faulthandler.enable()
    started = datetime.fromtimestamp(attempt.started_at, UTC).isoformat(timespec="seconds")
    _print(f"--- attempt {attempt.number} on {attempt.host}, process {attempt.pid}, {started} ---")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


class _LogObserver(Observer):
    """What a person should read stands in the log."""

    def message(self, text: str) -> None:
        _print(text)

    def warning(self, text: str) -> None:
        _print(f"Warning: {text}")


def main() -> None:
    if hasattr(signal, "pthread_sigmask"):
        # Whoever starts workers may have blocked signals meanwhile, and a new process inherits that.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if "SLURM_JOB_ID" in os.environ:
        # SLURM announces the end of a job to all of its processes; who watches this one passes it on as SIGTERM.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if len(sys.argv) > 2:  # noqa: PLR2004 - the program, the folder and the parent
        end_with_parent(int(sys.argv[2]))
    sys.exit(work(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
