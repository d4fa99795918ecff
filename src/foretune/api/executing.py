"""Opens the executor that runs the trials of a sweep or the parts of a study."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from foretune.core.errors import UnknownName, UserError
from foretune.core.units import KIB

if TYPE_CHECKING:
    from foretune.executors.executor import Executor
    from foretune.executors.task import Task

_PRELOADED = "foretune.sweeps.preloaded"
_MALLOC = "MALLOC_MMAP_THRESHOLD_"


ExecutorChoices = Mapping[str, Any] | Sequence[str]
"""Options of an executor by name, or as on the command line: `["partition=gpu"]`."""


def executor_options(given: ExecutorChoices) -> dict[str, Any]:
    """The options by name; values of text are read as YAML."""
    from foretune.config.yaml_files import parse

    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{text!r} is not an option of an executor. Write key=value, for example partition=gpu.")
        found[key.strip()] = parse(value)
    return found


def require_executor(name: str, feature: str) -> None:
    """Refuses an executor that does not exist, and a system on which none can start processes."""
    from foretune.executors.executor import EXECUTORS, require_processes

    if name not in EXECUTORS:
        raise UnknownName("executor", name, EXECUTORS)
    require_processes(feature)


@contextmanager
def opened_executor(
    name: str,
    *,
    jobs: int | None = None,
    options: ExecutorChoices = (),
    preload: Sequence[str] = (),
    limits_memory: bool = False,
) -> "Iterator[Executor]":
    """An executor until the end of the block; then what runs on this machine is interrupted.

    Args:
        name: local, slurm, ray or sky.
        jobs: tasks that run at once.
        options: further ones of the executor.
        preload: modules beside the libraries that a local executor imports once for all tasks.
        limits_memory: whether tasks have a limit of host memory.
    """
    from foretune.executors.executor import open_executor

    chosen = executor_options(options)
    if jobs is not None:
        chosen["jobs"] = jobs
    is_local = name == "local"
    if is_local:
        chosen.setdefault("preload", (_PRELOADED, *preload))

    def opened() -> "Executor":
        with _limit_counts_what_is_used() if is_local and limits_memory else nullcontext():
            return open_executor(name, chosen)

    executor = _OpenedAtUse(name, opened)
    try:
        yield cast("Executor", executor)
    finally:
        executor.close()


class _OpenedAtUse:
    """Opens the executor for the first task: where everything is done already, there is none."""

    def __init__(self, name: str, opened: "Callable[[], Executor]") -> None:
        self.name, self._opened = name, opened
        self._executor: Executor | None = None

    @property
    def num_slots(self) -> int | None:
        return self._open().num_slots

    @property
    def notes(self) -> list[str]:
        return [] if self._executor is None else self._executor.notes

    def submit(self, task: "Task") -> None:
        self._open().submit(task)

    def ended(self, timeout_s: float | None) -> list[str]:
        return [] if self._executor is None else self._executor.ended(timeout_s)

    def stop(self, name: str) -> None:
        if self._executor is not None:
            self._executor.stop(name)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()

    def _open(self) -> "Executor":
        if self._executor is None:
            self._executor = self._opened()
        return self._executor


@contextmanager
def _limit_counts_what_is_used() -> Iterator[None]:
    """Makes the C library of processes started meanwhile give large blocks back to the system when they are freed.

    Otherwise it keeps most of them in fragments: a training of a tiny FLUX took half as much again as its tensors.
    """
    before = os.environ.get(_MALLOC)
    os.environ.setdefault(_MALLOC, str(64 * KIB))
    try:
        yield
    finally:
        if before is None:
            del os.environ[_MALLOC]
