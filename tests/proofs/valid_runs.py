"""Runs of every kind that a directory can come from: finished, interrupted, killed, resumed, failed."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.training.train import PreparationFailed, resume
from tests.training.short_runs import Recording, short_run

TinyPath = Callable[[str], Path]


class Kill(BaseException):
    """Ends the process's work at once, as a kill does: nothing after it is written."""


def stopping_at(step: int) -> Recording:
    def stop(done: int) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return Recording(stop)


def killing_at(step: int) -> Recording:
    def stop(done: int) -> None:
        if done == step:
            raise Kill

    return Recording(stop)


def crashing_at(step: int) -> Recording:
    def stop(done: int) -> None:
        if done == step:
            raise RuntimeError("a kernel failed")

    return Recording(stop)


def newest(work: Path) -> RunDirectory:
    return RunDirectory.open(max((work / "runs" / "short").glob("2*"), key=lambda path: path.stat().st_mtime_ns))


def finished(model: Path, work: Path, **sections: Any) -> list[Path]:
    return [short_run(model, work, **sections).run.path]


def interrupted_then_resumed(model: Path, work: Path, **sections: Any) -> list[Path]:
    run = short_run(model, work, observer=stopping_at(2), **sections).run
    resume(run, Observer())
    return [run.path]


def interrupted(model: Path, work: Path, **sections: Any) -> list[Path]:
    return [short_run(model, work, observer=stopping_at(2), **sections).run.path]


def killed(model: Path, work: Path, **sections: Any) -> list[Path]:
    try:
        short_run(model, work, observer=killing_at(3), **sections)
    except Kill:
        return [newest(work).path]
    raise AssertionError("it was not killed")


def killed_then_resumed(model: Path, work: Path, **sections: Any) -> list[Path]:
    (path,) = killed(model, work, **sections)
    resume(RunDirectory.open(path), Observer())
    return [path]


def crashed(model: Path, work: Path, **sections: Any) -> list[Path]:
    return [short_run(model, work, observer=crashing_at(3), **sections).run.path]


def not_finite(model: Path, work: Path, **sections: Any) -> list[Path]:
    return [short_run(model, work, **{**sections, "optimizer": {"lr": 1e30}}).run.path]


def not_prepared(model: Path, work: Path, **sections: Any) -> list[Path]:
    """The memory is gone before the first step."""
    with patch("foretune.training.train.prepare", side_effect=MemoryError), contextlib.suppress(PreparationFailed):
        short_run(model, work, **sections)
    return [newest(work).path]


KINDS = (
    finished,
    interrupted_then_resumed,
    killed_then_resumed,
    interrupted,
    killed,
    crashed,
    not_finite,
    not_prepared,
)
