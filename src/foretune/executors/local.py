"""Tasks on this machine: one on each accelerator, and on the CPU one at a time unless more are requested."""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foretune.core.errors import UserError
from foretune.core.thread_waiting import with_passive_waiting
from foretune.executors import task_files as files
from foretune.executors.executor import Executor, checked_options, require_processes
from foretune.executors.line_channel import LineChannel
from foretune.executors.local_server import Settings
from foretune.executors.outcome import TaskOutcome
from foretune.executors.slots import Slots
from foretune.executors.state import read_state
from foretune.executors.task import Task
from foretune.executors.watching import GRACE_S
from foretune.record.accelerators import accelerators_here
from foretune.record.redaction import redacted_text

_DEVICE_VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
_MOST_RESTARTS = 3
"""Of the server between two outcomes. One that ends again and again is not started any more."""
_MOST_PRINTED_LETTERS = 2000


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """How tasks run on this machine."""

    jobs: int | None = None
    """Tasks that run at once. None: one for each accelerator, or one on the CPU."""
    preload: tuple[str, ...] = ()
    """Modules that the tasks import: they are imported once, and tasks are copies of that process."""
    fresh_interpreters: bool = False
    """Each task imports everything itself."""
    grace_s: float = GRACE_S
    """From a request to end until a task is killed."""

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise ValueError("jobs is at least 1")


def open_local(options: Mapping[str, Any]) -> Executor:
    require_processes("The local executor")
    return LocalExecutor(checked_options("local", LocalOptions, options))


class LocalExecutor:
    """Talks to the process that starts the tasks (`local_server`)."""

    name = "local"

    def __init__(self, options: LocalOptions | None = None) -> None:
        self._options = options or LocalOptions()
        devices, variable = visible_devices(os.environ)
        devices = devices[: self._options.jobs]
        self._settings = Settings(
            preload=list(self._options.preload),
            devices=devices,
            device_variable=variable,
            num_cpu_tasks=self._options.jobs or 1,
            is_fresh=self._options.fresh_interpreters,
            grace_s=self._options.grace_s,
        )
        self.num_slots: int | None = len(devices) or self._settings.num_cpu_tasks
        self.notes: list[str] = []
        """Why tasks begin slower than they could; empty where they do not."""
        self._tasks: dict[str, Task] = {}
        """Submitted, and not reported as ended."""
        self._ended: list[str] = []
        self._num_restarts = 0
        # Libraries print hints while they are imported, which matter only if they end the server.
        self._server_output = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`
        self._start_server()

    def submit(self, task: Task) -> None:
        state = read_state(task.folder)
        if state.kind == "ended":
            self._ended.append(task.name)
            return
        if task.name in self._tasks:
            raise UserError(f"A task named {task.name} is submitted already. Names are unique in a job.")
        if not Slots(list(self._settings.devices), 1).can_ever_hold(task.resources):
            files.write_outcome(task.folder, TaskOutcome(kind="refused", reason=self._why_too_much(task)))
            self._ended.append(task.name)
            return
        if state.kind == "waiting":
            files.write_task(task)
        self._tasks[task.name] = task
        self._send({"submit": str(task.folder.absolute())})

    def ended(self, timeout_s: float | None) -> list[str]:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ended and self._tasks:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            is_readable = select.select([self._channel], [], [], left_s)[0]
            self._hear()
            if left_s == 0.0 and not is_readable:
                break
        names, self._ended = self._ended, []
        return names

    def stop(self, name: str) -> None:
        self._send({"stop": name})

    def close(self) -> None:
        """Interrupts the tasks that run, and waits for their end."""
        self._channel.close()
        self._server.wait()
        self._server_output.close()

    def _why_too_much(self, task: Task) -> str:
        resources = task.resources
        if resources.num_nodes > 1:
            run = "Run: foretune sweep ... --executor slurm"
            return f"The task needs {resources.num_nodes} nodes, and this is one machine. {run}"
        needed, here = _accelerators(resources.num_devices), _accelerators(len(self._settings.devices))
        run = "Run: foretune sweep ... --executor slurm"
        return f"The task needs {needed}, and the local executor has {here}. {run}"

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            self._server = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "foretune.executors.local_server"),
                    *(str(theirs.fileno()), json.dumps(asdict(self._settings))),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._server_output,
                stderr=self._server_output,
                env=with_passive_waiting(os.environ),
                # A Ctrl-C in the terminal is for the controller, which decides what becomes of the tasks.
                start_new_session=True,
            )
        self._channel = LineChannel(ours)

    def _send(self, message: dict[str, Any]) -> None:
        self._channel.send(message)
        while self._channel.has_unsent:
            select.select([], [self._channel], [])
            self._channel.write()
        if not self._channel.is_open:
            self._hear()

    def _hear(self) -> None:
        for message in self._channel.read():
            if "note" in message:
                self.notes.append(message["note"])
            elif self._tasks.pop(message["ended"], None) is not None:
                self._ended.append(message["ended"])
                self._num_restarts = 0
        if not self._channel.is_open:
            self._restart_server()

    def _restart_server(self) -> None:
        """The server was ended by someone, and its tasks with it: they are performed again by another one."""
        self._channel.close()
        code = self._server.wait()
        self._num_restarts += 1
        if self._num_restarts > _MOST_RESTARTS:
            self._server_output.seek(0)
            printed = self._server_output.read().decode("utf-8", errors="replace")[-_MOST_PRINTED_LETTERS:]
            raise RuntimeError(
                f"the process that starts tasks ended {self._num_restarts} times, now with code {code}; it printed:\n"
                f"{redacted_text(printed)}"
            )
        self._start_server()
        for task in self._tasks.values():
            self._channel.send({"submit": str(task.folder.absolute())})


def _accelerators(num: int) -> str:
    return "1 accelerator" if num == 1 else f"{num} accelerators"


def visible_devices(variables: Mapping[str, str]) -> tuple[list[str], str]:
    """The accelerators that tasks may use, and the variable that gives them to a task."""
    found = accelerators_here()
    kind = found[0].kind if found else "cuda"
    # Apple's GPU needs no variable: there is one, and it is busy with one task.
    variable = _DEVICE_VARIABLES.get(kind, _DEVICE_VARIABLES["cuda"])
    for name in dict.fromkeys((variable, *_DEVICE_VARIABLES.values())):
        if name in variables:
            return [device.strip() for device in variables[name].split(",") if device.strip() not in ("", "-1")], name
    num = sum(device.kind == kind for device in found)
    if kind == "rocm":
        # The kernel lists all cards of the machine, also those that a container or ROCR_VISIBLE_DEVICES, as SLURM sets
        # it, hides from this process.
        num = _num_seen_by_torch(variables, unless_known=num)
    return [str(number) for number in range(num)], variable


def _num_seen_by_torch(variables: Mapping[str, str], *, unless_known: int) -> int:
    """Counts GPUs in a process of its own, because it initialises the driver."""
    command = [sys.executable, "-P", "-c", "import torch; print(torch.cuda.device_count())"]
    counted = subprocess.run(command, env=dict(variables), capture_output=True, text=True, check=False)
    last = counted.stdout.split()[-1:]
    return int(last[0]) if counted.returncode == 0 and last else unless_known
