"""The process that runs the tasks of a local executor.

`python -P -m foretune.executors.local_server SOCKET_NUMBER SETTINGS`

It has imported what the tasks import, and computes nothing. A task is performed by a copy of it, which begins at once,
or by a fresh interpreter. It ends when the process that opened the executor does, and its tasks with it.

Where its imports have left something that does not survive a fork (`preloading`), tasks get fresh interpreters.
"""

import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from foretune.executors import task_files as files
from foretune.executors.line_channel import LineChannel
from foretune.executors.parent_death import adopt_orphans, end_with_parent
from foretune.executors.preloading import preload, why_not_copied
from foretune.executors.slots import Slot, Slots
from foretune.executors.state import read_state
from foretune.executors.task import Task
from foretune.executors.watching import WatchedWorker, never_started
from foretune.executors.worker import work

_LOOK_EVERY_S = 0.25
"""At tasks that other processes perform; at all of them where the system does not report the end of a process."""


@dataclass(frozen=True)
class Settings:
    """What the executor decides."""

    preload: list[str]
    devices: list[str]
    device_variable: str
    num_cpu_tasks: int
    is_fresh: bool
    grace_s: float


@dataclass
class _Running:
    worker: WatchedWorker
    slot: Slot
    descriptor: int | None
    """Readable when the process has ended."""


class LocalServer:
    """Starts tasks as slots become free, and reports those that have an outcome."""

    def __init__(self, channel: LineChannel, settings: Settings, *, can_copy: bool) -> None:
        self._channel, self._settings, self._can_copy = channel, settings, can_copy
        self._slots = Slots(list(settings.devices), settings.num_cpu_tasks)
        self._waiting: deque[Task] = deque()
        self._running: dict[str, _Running] = {}
        self._elsewhere: dict[str, Task] = {}
        """Performed by processes that others started."""
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> Path | None:
        """In a copy, the folder of the task that it performs; in the server itself None, at its end."""
        while not (self._is_closing and not self._running):
            self._wait()
            self._hear()
            for name in [name for name, running in self._running.items() if running.worker.has_exited()]:
                self._collect(self._running.pop(name))
            for running in self._running.values():
                running.worker.act()
            self._look_elsewhere()
            folder = self._start_what_fits()
            if folder is not None:
                return folder
        return None

    def _wait(self) -> None:
        due = [due_s for running in self._running.values() if (due_s := running.worker.due_in_s()) is not None]
        if self._elsewhere or any(running.descriptor is None for running in self._running.values()):
            due.append(_LOOK_EVERY_S)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.has_unsent else 0)
        if not self._is_closing:
            self._selector.modify(self._channel, events)
        self._selector.select(min(due, default=None))

    def _hear(self) -> None:
        if self._is_closing:
            return
        self._channel.write()
        for message in self._channel.read():
            if "submit" in message:
                self._waiting.append(files.read_task(Path(message["submit"])))
            elif "stop" in message:
                self._stop(message["stop"])
        if not self._channel.is_open:
            self._is_closing = True
            self._selector.unregister(self._channel)
            self._waiting.clear()
            self._elsewhere.clear()
            for running in self._running.values():
                running.worker.end("interrupted")

    def _stop(self, name: str) -> None:
        running = self._running.get(name)
        if running is not None:
            running.worker.end("stopped")
        for task in [task for task in self._waiting if task.name == name]:
            self._waiting.remove(task)
            never_started(task.folder, "It was stopped on request before it began.")
            self._report(task)

    def _report(self, task: Task) -> None:
        self._channel.send({"ended": task.name})

    def _collect(self, running: _Running) -> None:
        if running.descriptor is not None:
            self._selector.unregister(running.descriptor)
            os.close(running.descriptor)
        what = running.worker.collect()
        _reap_adopted({one.worker.pid for one in self._running.values()})
        self._slots.give_back(running.slot)
        task = running.worker.task
        if what == "ended":
            self._report(task)
        elif what == "elsewhere":
            self._elsewhere[task.name] = task
        elif not self._is_closing:
            self._waiting.appendleft(task)

    def _look_elsewhere(self) -> None:
        for name, task in list(self._elsewhere.items()):
            state = read_state(task.folder)
            if state.kind == "running":
                continue
            del self._elsewhere[name]
            if state.kind == "ended":
                self._report(task)
            else:
                self._waiting.append(task)

    def _start_what_fits(self) -> Path | None:
        """Starts tasks, first come first served, but past those whose devices are not free. A copy returns."""
        for task in list(self._waiting):
            slot = self._slots.take(task.resources)
            if slot is None:
                continue
            self._waiting.remove(task)
            state = read_state(task.folder)
            if state.kind == "waiting":
                if self._start(task, slot, state.num_attempts):
                    return task.folder
            else:
                self._slots.give_back(slot)
                self._elsewhere[task.name] = task
        return None

    def _start(self, task: Task, slot: Slot, num_before: int) -> bool:
        """Starts a worker. True in the worker itself, where it is a copy."""
        variables = {self._settings.device_variable: ",".join(slot.devices)}
        if self._can_copy:
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._become_worker(task, variables, parent)
                return True
        else:
            pid = _started_fresh(task, variables)
        worker = WatchedWorker(task, pid, num_before, self._settings.grace_s)
        descriptor = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        if descriptor is not None:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._running[task.name] = _Running(worker, slot, descriptor)
        return False

    def _become_worker(self, task: Task, variables: Mapping[str, str], parent: int) -> None:
        os.setsid()
        end_with_parent(parent)
        for running in self._running.values():
            if running.descriptor is not None:
                os.close(running.descriptor)
        self._selector.close()
        self._channel.close()
        with files.open_log(task.folder) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ.update(variables)
        _seed_as_fresh()


def _started_fresh(task: Task, variables: Mapping[str, str]) -> int:
    command = [sys.executable, "-P", "-m", "foretune.executors.worker", str(task.folder), str(os.getpid())]
    with files.open_log(task.folder) as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    # Collected by its number, as copies are: this object must not do it.
    process.returncode = 0
    return process.pid


def _seed_as_fresh() -> None:
    """A fresh interpreter draws from the system what nobody has seeded; Python's own generator does so by itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _leave(code: int) -> NoReturn:
    """Ends a copy as an interpreter ends, but without taking every object of the server apart.

    That would write to all of the memory that the copies share, and take longer than many a task.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _reap_adopted(own: set[int]) -> None:
    """Collects processes whose parents, our workers, ended before them."""
    with suppress(ChildProcessError):
        while hasattr(os, "waitid"):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, 0)


def _kill_adopted() -> None:
    """Ends what workers left behind outside of their process groups."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    for pid in map(int, children.read_text(encoding="ascii").split() if children.is_file() else ()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    settings = Settings(**json.loads(sys.argv[2]))
    channel = LineChannel(connection)
    can_copy = not settings.is_fresh
    if can_copy:
        for problem in preload(settings.preload):
            channel.send({"note": problem})
        why_not = why_not_copied()
        can_copy = why_not is None
        if why_not is not None:
            channel.send({"note": f"Tasks import everything themselves: {why_not}."})
    adopt_orphans()
    folder = LocalServer(channel, settings, can_copy=can_copy).serve()
    if folder is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = [sys.argv[0], str(folder)]
        _leave(work(folder))
    _kill_adopted()


if __name__ == "__main__":
    main()
