"""Tasks on a Ray cluster: one that is there already, or one that is started on this machine.

Ray ends what a process started on it when that process ends. Interrupted tasks are performed again when they are
submitted again.
"""

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError
from foretune.core.extras import require
from foretune.executors import task_files as files
from foretune.executors.executor import Executor, checked_options, require_nodes
from foretune.executors.node_program import TaskOnNode
from foretune.executors.outcome import OutcomeKind, TaskOutcome
from foretune.executors.state import read_state
from foretune.executors.task import Task
from foretune.executors.watching import GRACE_S, Ended, end_last_attempt, interrupted, never_started

_LOOK_EVERY_S = 0.5
_ALWAYS = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Ray would report to its makers."""
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""A cluster that nothing else can join. Its processes then listen on the loopback interface alone; `_node_ip_address`
does not achieve that (ray 2.60)."""


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Which cluster, and what each task takes of it."""

    address: str | None = None
    """Of a cluster: `auto` on one of its machines, host:port, or ray://host:port. None: one is started here, which
    nothing outside of this machine can reach."""
    jobs: int | None = None
    """Tasks that run at once. None: as many as the cluster has resources for."""
    num_cpus: float = 1.0
    """Cores for a task that does not request a number itself."""
    memory: int | None = None
    """Bytes that Ray sets aside for each task; it does not enforce them."""
    resources: Mapping[str, float] | None = None
    """Resources of the cluster's own, such as {"a100-80gb": 1}."""
    grace_s: float = GRACE_S
    """From a request to end until a worker is killed."""


def open_ray(options: Mapping[str, Any]) -> Executor:
    require("ray", "The Ray executor")
    return RayExecutor(checked_options("ray", RayOptions, options))


class RayExecutor:
    """Remote tasks, each of which starts and watches one worker on its node."""

    name = "ray"
    num_slots: int | None

    def __init__(self, options: RayOptions | None = None) -> None:
        self._options = options or RayOptions()
        self.notes: list[str] = []
        self._tasks: dict[str, Task] = {}
        """Submitted, and not reported as ended."""
        self._calls: dict[Any, str] = {}
        """The calls that Ray has not answered, with the names of their tasks."""
        self._waiting: deque[Task] = deque()
        """Not called yet, because `jobs` others are."""
        self._elsewhere: set[str] = set()
        """Performed by processes that others started."""
        self._stopped: set[str] = set()
        self._ended: list[str] = []
        self.num_slots = self._options.jobs
        self._ray = _connected(self._options.address)

    def submit(self, task: Task) -> None:
        require_nodes(self.name, task.resources.num_nodes)
        if task.name in self._tasks:
            raise UserError(f"A task named {task.name} is submitted already. Names are unique in a job.")
        state = read_state(task.folder)
        if state.kind == "ended":
            self._ended.append(task.name)
            return
        missing = self._what_no_node_has(task)
        if missing is not None and self._options.address is None:
            files.write_outcome(task.folder, TaskOutcome(kind="refused", reason=f"{missing} Nothing can join it."))
            self._ended.append(task.name)
            return
        if missing is not None:
            self._note(f"{missing} Tasks wait until such a node joins. See what there is: ray status")
        self._tasks[task.name] = task
        if state.kind == "running":
            self._elsewhere.add(task.name)
        else:
            files.write_task(task)
            self._waiting.append(task)
            self._call_waiting()

    def ended(self, timeout_s: float | None) -> list[str]:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._look_elsewhere()
            self._hear()
            if self._ended or not self._tasks or (until_s is not None and time.monotonic() >= until_s):
                names, self._ended = self._ended, []
                return names

    def stop(self, name: str) -> None:
        if any(task.name == name for task in self._waiting):
            self._waiting = deque(task for task in self._waiting if task.name != name)
            self._write(self._tasks[name], "killed", "It was stopped on request before it began.")
        elif name in self._tasks:
            self._stopped.add(name)
            attempt = read_state(self._tasks[name].folder).attempt
            if attempt is not None:
                files.mark_ending(self._tasks[name].folder, attempt.number, "stopped")
            for call in [call for call, task in self._calls.items() if task == name]:
                self._ray.cancel(call)

    def close(self) -> None:
        """Interrupts what runs, and leaves the cluster; one that was started here ends."""
        for call in self._calls:
            self._ray.cancel(call)
        if self._calls:
            self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=2 * self._options.grace_s)
        self._ray.shutdown()

    def _call_waiting(self) -> None:
        while self._waiting and (self._options.jobs is None or len(self._calls) < self._options.jobs):
            self._call(self._waiting.popleft())

    def _taken(self, task: Task) -> dict[str, Any]:
        """What a task takes of one node, as Ray names it."""
        options = self._options
        taken = {
            "num_cpus": task.resources.num_cpus or options.num_cpus,
            "num_gpus": task.resources.num_devices,
            "resources": dict(options.resources or {}) or None,
            "memory": options.memory,
        }
        return {name: value for name, value in taken.items() if value is not None}

    def _what_no_node_has(self, task: Task) -> str | None:
        """That the task is larger than each node of the cluster, in a sentence; None where one can hold it."""
        taken = self._taken(task)
        needed = {"CPU": taken["num_cpus"], "GPU": taken["num_gpus"], "memory": taken.get("memory", 0)}
        needed |= taken.get("resources", {})
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= number for name, number in needed.items()) for node in nodes):
            return None
        what = ", ".join(f"{number:g} {name}" for name, number in needed.items() if number)
        return f"A task takes {what} on one node, and no node of the Ray cluster has that."

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _call(self, task: Task) -> None:
        # Which failures are worth another attempt is decided here, where they become outcomes.
        remote = self._ray.remote(**self._taken(task), max_retries=0, name=task.name)
        call = remote(_perform).remote(str(task.folder.absolute()), self._options.grace_s)
        self._calls[call] = task.name

    def _hear(self) -> None:
        """What Ray has answered, or nothing after a moment."""
        if not self._calls:
            if self._elsewhere and not self._ended:
                time.sleep(_LOOK_EVERY_S)
            return
        wait_s = 0.0 if self._ended else _LOOK_EVERY_S
        for call in self._ray.wait(list(self._calls), num_returns=1, timeout=wait_s)[0]:
            task = self._tasks[self._calls.pop(call)]
            self._settle(task, *self._answer(call))
            self._call_waiting()

    def _answer(self, call: Any) -> "tuple[Ended | None, Exception | None]":
        try:
            return self._ray.get(call), None
        except (self._ray.exceptions.RayError, self._ray.exceptions.RayTaskError) as error:
            return None, error

    def _settle(self, task: Task, result: "Ended | None", error: Exception | None) -> None:
        state = read_state(task.folder)
        if state.kind == "ended":
            self._report(task)
        elif task.name in self._stopped:
            self._write(task, "killed", "It was stopped on request.")
        elif state.kind == "running":
            # Not reached any more, but it lives; or another process performs it.
            self._elsewhere.add(task.name)
        elif isinstance(error, self._ray.exceptions.OutOfMemoryError):
            self._write(task, "out of host memory", "Ray ended it because the memory of its node ran out.")
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            self._write(task, "crashed", f"Its Ray worker failed: {str(error.cause).strip() or error}")
        else:
            why = "its Ray worker or its node was lost" if result is None else "it was requested to end"
            self._interrupted(task, why)

    def _interrupted(self, task: Task, why: str) -> None:
        # One that was lost before it began has no attempt that could be counted, and took nothing.
        if not files.read_attempts(task.folder) or interrupted(task, why) == "interrupted":
            self._call(task)
        else:
            self._report(task)

    def _look_elsewhere(self) -> None:
        for name in list(self._elsewhere):
            state = read_state(self._tasks[name].folder)
            if state.kind != "running":
                self._elsewhere.remove(name)
                self._settle(self._tasks[name], None, None)

    def _write(self, task: Task, kind: OutcomeKind, reason: str) -> None:
        if files.read_attempts(task.folder):
            end_last_attempt(task, kind, reason)
        else:
            never_started(task.folder, reason)
        self._report(task)

    def _report(self, task: Task) -> None:
        del self._tasks[task.name]
        self._ended.append(task.name)


def _perform(folder: str, grace_s: float) -> Ended:
    """Runs in a process of Ray, on the node that was chosen."""
    task = TaskOnNode(Path(folder), grace_s=grace_s)
    try:
        return task.run()
    except KeyboardInterrupt:  # how Ray cancels
        return task.interrupt() or "interrupted"


def _connected(address: str | None) -> Any:
    """The package, connected to a cluster."""
    with _variables(_ALWAYS if address is not None else {**_ALWAYS, **_ON_LOOPBACK}):
        import ray

        if ray.is_initialized():
            raise UserError("This process is connected to a Ray cluster already. Leave that one first: ray.shutdown()")
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        where = {"include_dashboard": False} if address is None else {"address": address}
        if address is None:
            # It explains how to switch off what keeps others out.
            logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            ray.init(configure_logging=False, log_to_driver=False, **where)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            what = "could not be started here" if address is None else f"at {address} could not be reached"
            raise UserError(f"A Ray cluster {what}: {error}. Check it with: ray status") from error
        finally:
            if is_main:
                signal.signal(signal.SIGTERM, before)  # Ray sets its own
    return ray


@contextmanager
def _variables(added: Mapping[str, str]) -> Iterator[None]:
    """Ray reads its settings from the environment when it is imported, and passes them on to what it starts."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in added.items() if name not in before})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
