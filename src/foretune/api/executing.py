"""Opens the executor that runs the trials of a sweep or the parts of a study."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from foretune.core.units import KIB

if TYPE_CHECKING:
    from foretune.executors.executor import Executor

_PRELOADED = "foretune.sweeps.preloaded"
_MALLOC = "MALLOC_MMAP_THRESHOLD_"


@contextmanager
def opened_executor(
    name: str,
    *,
    jobs: int | None = None,
    options: Mapping[str, Any] | None = None,
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

    chosen = dict(options or {})
    if jobs is not None:
        chosen["jobs"] = jobs
    is_local = name == "local"
    if is_local:
        chosen.setdefault("preload", (_PRELOADED, *preload))
    with _limit_counts_what_is_used() if is_local and limits_memory else nullcontext():
        executor = open_executor(name, chosen)
    try:
        yield executor
    finally:
        executor.close()


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
