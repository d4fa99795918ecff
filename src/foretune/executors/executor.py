"""The seam: what every executor does, and how one is opened by its name."""

import platform
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from foretune.core.errors import UnknownName, UserError
from foretune.core.registry import Registry
from foretune.executors.task import Task

Options = TypeVar("Options")


class Executor(Protocol):
    """Runs tasks somewhere. All that matters is in the tasks' folders: another process can take over at any time."""

    name: str
    num_slots: int | None
    """Tasks that run at once; None: the cluster queues them."""
    notes: list[str]
    """What the user should know of where and when tasks run, such as why none can begin. Grows."""

    def submit(self, task: Task) -> None:
        """Returns at once. A task that has an outcome is not performed again, and one that a live process performs is
        waited for, not started twice.
        """

    def ended(self, timeout_s: float | None) -> list[str]:
        """Waits until at least one submitted task has an outcome; returns the names, each of them once.

        Empty where the time is up, or where nothing is left to wait for.
        """

    def stop(self, name: str) -> None:
        """Requests a task to end. Its outcome is "killed", or "never started"."""

    def close(self) -> None:
        """Lets go of everything. Tasks of a local executor are interrupted and can be submitted again; those of a
        cluster go on, and are found again when they are submitted.
        """


class NewNotes:
    """The notes of an executor, each of them once."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._num_taken = executor, 0

    def take(self) -> list[str]:
        """Those that have come since the last call."""
        notes = self._executor.notes[self._num_taken :]
        self._num_taken += len(notes)
        return notes


EXECUTORS: Registry[Any] = Registry(
    "executor",
    {
        "local": "foretune.executors.local:open_local",
        "ray": "foretune.executors.ray_cluster:open_ray",
        "sky": "foretune.executors.sky:open_sky",
        "slurm": "foretune.executors.slurm:open_slurm",
    },
)


def require_processes(feature: str, *, nearest: str | None = None) -> None:
    """Refuses a system on which several processes cannot be started, watched and ended."""
    if platform.system() == "Windows":
        otherwise = f" Nearest: {nearest}" if nearest else ""
        raise UserError(
            f"{feature} starts and ends processes as Linux and macOS do. On Windows, install and run Foretune in WSL: "
            f"https://aka.ms/wsl.{otherwise}"
        )


WITH_SEVERAL_NODES = ("slurm",)
"""Executors that run a task on more than one node."""


def require_nodes(executor: str, num_nodes: int) -> None:
    """Refuses a task on several nodes where the executor runs each on one."""
    if num_nodes > 1 and executor not in WITH_SEVERAL_NODES:
        raise UserError(
            f"resources.nodes: {num_nodes}, and the {executor} executor runs each task on one node. "
            "Nearest: resources.nodes: 1, with parallel.devices for the devices of one node. "
            "Or run: foretune sweep ... --executor slurm"
        )


def open_executor(name: str, options: Mapping[str, Any]) -> Executor:
    """The executor of a name, ready for tasks."""
    executor: Executor = EXECUTORS[name](options)
    return executor


def checked_options(executor: str, kind: type[Options], options: Mapping[str, Any]) -> Options:
    """The options of an executor; raises UnknownName where there is none of such a name."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise UnknownName(f"option of the {executor} executor", name, known)
    try:
        return TypeAdapter(kind).validate_python(dict(options))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise UserError(f"The options of the {executor} executor are not valid: {problems}") from error
