"""Tasks as jobs of a SLURM cluster, submitted through submitit in arrays.

Jobs outlive this process. Whoever submits the tasks again finds their jobs; whatever SLURM forgets, the files of a task
say how it ended.
"""

import json
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError
from foretune.core.extras import require
from foretune.core.input_files import read_json
from foretune.executors import slurm_states as states
from foretune.executors import task_files as files
from foretune.executors.executor import Executor, checked_options
from foretune.executors.node_program import SlurmTask
from foretune.executors.outcome import OutcomeKind, TaskOutcome
from foretune.executors.slurm_options import SlurmOptions, require_safe_path
from foretune.executors.state import read_state
from foretune.executors.task import Task
from foretune.executors.watching import end_last_attempt, interrupted, never_started
from foretune.record.atomic import write_text

JOB = "slurm_job.json"
"""In a task's folder: which jobs performed it."""
_MOST_JOB_BYTES = 2**20
_LOOK_EVERY_S = 0.5
_NUM_LOOKS_BEFORE_LOST = 2
"""How often SLURM must report that a job has ended before its outcome counts as missing: a file server shows a new
file a moment later."""
_MANY_REQUEUES = 1_000_000
"""submitit counts them, too. `max_attempts` decides."""
_INTERRUPTIONS: Mapping[str, str] = {
    "BOOT_FAIL": "its node did not start",
    "DEADLINE": "the deadline of its SLURM job passed",
    "NODE_FAIL": "its node failed",
    "PREEMPTED": "its SLURM job was preempted",
    "REVOKED": "its SLURM job was moved to another cluster",
    "TIMEOUT": "the time limit of its SLURM job passed",
    states.VANISHED: "its SLURM job is gone",
}


def open_slurm(options: Mapping[str, Any]) -> Executor:
    require("slurm", "The SLURM executor")
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError(
            "There is no SLURM here: sbatch was not found. Run this on a login node of the cluster, or: "
            "foretune sweep ... --executor local"
        )
    return SlurmExecutor(checked_options("slurm", SlurmOptions, options))


class SlurmExecutor:
    """Submits, and looks at files and queue until each task has an outcome."""

    name = "slurm"
    num_slots: int | None = None

    def __init__(self, options: SlurmOptions | None = None) -> None:
        self._options = options or SlurmOptions()
        self.notes: list[str] = []
        self._tasks: dict[str, Task] = {}
        """Submitted, and not reported as ended."""
        self._jobs: dict[str, str] = {}
        """The last job of each of them, by the task's name."""
        self._unsent: list[Task] = []
        self._stopped: set[str] = set()
        self._ended: list[str] = []
        self._num_looks: dict[str, int] = {}
        """How often SLURM reported that a task's job has ended."""
        self._asked_at_s = -float("inf")
        self._known: dict[str, str] | None = None
        self._known_at_s = 0.0

    def submit(self, task: Task) -> None:
        require_safe_path(task.folder)
        self._options.minutes(task)
        if task.name in self._tasks:
            raise UserError(f"A task named {task.name} is submitted already. Names are unique in a job.")
        state = read_state(task.folder)
        if state.kind == "ended":
            self._ended.append(task.name)
            return
        self._tasks[task.name] = task
        known = _jobs_of(task.folder)
        if known and (state.kind == "running" or self._is_alive(known[-1])):
            self._jobs[task.name] = known[-1]
        elif state.kind == "waiting":
            files.write_task(task)
            (task.folder / JOB).unlink(missing_ok=True)
            self._unsent.append(task)

    def ended(self, timeout_s: float | None) -> list[str]:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._send()
            self._look_at_files()
            if not self._ended and time.monotonic() - self._asked_at_s >= self._options.poll_s:
                self._look_at_queue()
            if self._ended or not self._tasks or (until_s is not None and time.monotonic() >= until_s):
                names, self._ended = self._ended, []
                return names
            time.sleep(_LOOK_EVERY_S)

    def stop(self, name: str) -> None:
        task = self._tasks.get(name)
        if task is None:
            return
        self._stopped.add(name)
        if task in self._unsent:
            self._unsent.remove(task)
            never_started(task.folder, "It was stopped on request before it began.")
            return
        state = read_state(task.folder)
        if state.kind == "running" and state.attempt is not None:
            files.mark_ending(task.folder, state.attempt.number, "stopped")
        if name in self._jobs:
            states.cancel(self._jobs[name])

    def close(self) -> None:
        """Sends what was submitted; the jobs go on without this process."""
        self._send()

    def _is_alive(self, job: str) -> bool:
        """As of the last look, where that is not long ago: hundreds of tasks may be submitted again at once."""
        if self._known is None or time.monotonic() - self._known_at_s >= self._options.poll_s:
            self._known, self._known_at_s = states.states_of_jobs(), time.monotonic()
        if self._known is None:
            raise UserError("SLURM does not answer. Check it with: squeue")
        return job in self._known and not states.has_ended(self._known[job])

    def _send(self) -> None:
        """Submits what waits for it, tasks that need the same as one array."""
        unsent, self._unsent = self._unsent, []
        alike: dict[str, list[Task]] = {}
        for task in unsent:
            alike.setdefault(json.dumps(self._options.parameters(task), sort_keys=True), []).append(task)
        for tasks in alike.values():
            for chunk in _chunks(tasks, states.max_array_size()):
                self._send_array(chunk)

    def _send_array(self, tasks: list[Task]) -> None:
        import submitit
        from submitit.core.utils import FailedJobError

        # A folder of its own: submitit names files by numbers of jobs, which another cluster uses as well.
        parent = tasks[0].folder.parent / ".slurm" if self._options.folder is None else Path(self._options.folder)
        folder = parent.absolute() / uuid.uuid4().hex
        executor = submitit.SlurmExecutor(folder, max_num_timeout=_MANY_REQUEUES)
        executor.update_parameters(**self._options.parameters(tasks[0]))
        try:
            with executor.batch():
                jobs = [
                    executor.submit(SlurmTask(str(task.folder.absolute()), self._options.grace_s)) for task in tasks
                ]
        except FailedJobError as error:
            raise UserError(_refused(str(error).strip(), tasks[0].resources.num_devices)) from error
        for task, job in zip(tasks, jobs, strict=True):
            self._jobs[task.name] = job.job_id
            known = [*_jobs_of(task.folder), job.job_id]
            write_text(task.folder / JOB, json.dumps({"jobs": known, "logs": str(folder)}) + "\n")
        self._asked_at_s = time.monotonic()

    def _look_at_files(self) -> None:
        for name, task in list(self._tasks.items()):
            if files.read_outcome(task.folder) is not None:
                del self._tasks[name]
                self._num_looks.pop(name, None)
                self._ended.append(name)

    def _look_at_queue(self) -> None:
        self._asked_at_s = time.monotonic()
        known = states.states_of_jobs()
        if known is None:
            return  # while its controller restarts
        over = {}
        for name, task in self._tasks.items():
            state = known.get(self._jobs.get(name, ""), states.VANISHED)
            if not states.has_ended(state) or read_state(task.folder).kind == "running":
                self._num_looks.pop(name, None)
                continue
            self._num_looks[name] = self._num_looks.get(name, 0) + 1
            if self._num_looks[name] >= _NUM_LOOKS_BEFORE_LOST:
                over[name] = state
        forgotten = [self._jobs[name] for name in over.keys() & self._jobs.keys() if over[name] == states.VANISHED]
        accounted = states.accounted_states(forgotten) if forgotten else {}
        for name, state in over.items():
            del self._num_looks[name]
            self._settle(self._tasks[name], accounted.get(self._jobs.get(name, ""), state))
        self._look_at_files()

    def _settle(self, task: Task, state: str) -> None:
        """The job has ended, and the task has no outcome: records one, or performs the task again."""
        attempts = files.read_attempts(task.folder)
        last = attempts[-1] if attempts else None
        interruption = None if last is None else files.read_interruption(task.folder, last.number)
        if task.name in self._stopped or state == "CANCELLED":
            who = "on request" if task.name in self._stopped else "by whoever cancelled its SLURM job"
            if last is None:
                never_started(task.folder, f"It was stopped {who} before it began.")
            else:
                end_last_attempt(task, "killed", f"It was stopped {who}.")
        elif state == "OUT_OF_MEMORY" and last is not None:
            end_last_attempt(task, "out of host memory", "SLURM ended its job for the memory that it took.")
        elif last is None and (failure := files.first_rank_failure(task.folder)) is not None:
            # Another process failed before the first one began: it would fail again.
            log_lines = files.last_log_lines(task.folder)
            files.write_outcome(task.folder, TaskOutcome(kind=failure[0], reason=failure[1], log_lines=log_lines))
        elif last is None and len(_jobs_of(task.folder)) >= task.max_attempts:
            reason = f"Its SLURM job {self._jobs[task.name]} ended ({state}) before it began."
            never_started(task.folder, reason, files.last_lines(_submitit_log(task.folder)))
        elif last is not None and (failure := files.first_rank_failure(task.folder)) is not None:
            end_last_attempt(task, *failure)
        elif state in _INTERRUPTIONS or interruption is not None or last is None:
            why = interruption or _INTERRUPTIONS.get(state, "its SLURM job ended before it began")
            kind: OutcomeKind = "timed out" if state == "TIMEOUT" else "killed"
            if last is None or interrupted(task, why, kind) == "interrupted":
                self._unsent.append(task)
        else:
            reason = f"Its SLURM job {self._jobs.get(task.name, '')} ended ({state}) without an outcome."
            end_last_attempt(task, "crashed", reason)


def _jobs_of(folder: Path) -> list[str]:
    """The jobs of the last submission of a task, oldest first."""
    try:
        jobs: list[str] = read_json(folder / JOB, _MOST_JOB_BYTES)["jobs"]
    except FileNotFoundError:
        return []
    return jobs


def _submitit_log(folder: Path) -> Path:
    """What the last job of a task printed before its worker began."""
    fields = read_json(folder / JOB, _MOST_JOB_BYTES)
    return Path(fields["logs"]) / f"{fields['jobs'][-1]}_0_log.out"


def _chunks(tasks: list[Task], size: int) -> Iterator[list[Task]]:
    for start in range(0, len(tasks), size):
        yield tasks[start : start + size]


def _refused(reason: str, num_devices: int) -> str:
    """Why SLURM did not take jobs, with what to change."""
    sentence = f"SLURM did not accept the jobs: {reason}"
    if not num_devices or "generic resource" not in reason:
        return sentence
    return (
        f"{sentence}. Each task requests {num_devices} GPU{'s' if num_devices > 1 else ''}. On nodes without GPUs, set "
        "parallel.device=cpu. If the cluster names its GPUs differently, set gres, such as gres=gpu:a100:1"
    )
