"""Trainings in this process that are stopped at a chosen point, and resumed in fresh objects."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from foretune.config.reading import understand
from foretune.core.observer import Observer, StepReport
from foretune.data.batch import Batch
from foretune.record.run_directory import RunDirectory
from foretune.training.encoding import LiveEncoders
from foretune.training.train import resume, train


class Died(BaseException):
    """The end of a process, played: not an Exception, so that nothing between here and the test tidies up."""


class Stopper(Observer):
    """Asks for a stop when a number of steps is done, or dies."""

    patience_s = 0.0

    def __init__(self, *, ask_after: int | None = None, die_after: int | None = None) -> None:
        self.ask_after, self.die_after = ask_after, die_after
        self.warnings: list[str] = []

    def stepped(self, report: StepReport) -> None:
        if report.step + 1 == self.ask_after:
            signal.raise_signal(signal.SIGTERM)
        if report.step + 1 == self.die_after:
            raise Died

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def start(experiment: dict[str, Any], runs: Path, observer: Observer | None = None) -> RunDirectory:
    """Trains until the end, or until it is asked to stop or dies."""
    return _run_of(runs, lambda: train(understand(experiment, source="a proof"), runs, observer or Observer()))


def go_on(run: RunDirectory, observer: Observer | None = None) -> None:
    """Resumes until the end, or until it is asked to stop or dies."""
    _run_of(run.path.parent.parent, lambda: resume(RunDirectory.open(run.path), observer or Observer()))


def _run_of(runs: Path, act: Callable[[], object]) -> RunDirectory:
    with suppress(Died):
        act()
    (path,) = (path for path in runs.glob("*/*") if not path.is_symlink())
    return RunDirectory.open(path)


@contextmanager
def dying_in_window(step: int, micro: int) -> Iterator[None]:
    """Dies where the gradients of the micro-steps before this one are summed up and the update is not made."""
    ready = LiveEncoders.ready

    def ready_or_die(self: LiveEncoders, batch: Batch, device: torch.device) -> Batch:
        if (batch.step, batch.micro) == (step, micro):
            raise Died
        return ready(self, batch, device)

    LiveEncoders.ready = ready_or_die  # type: ignore[method-assign]
    try:
        yield
    finally:
        LiveEncoders.ready = ready  # type: ignore[method-assign]


@contextmanager
def restless_scaler(init_scale: float) -> Iterator[None]:
    """Loss scalers that begin too high and grow every other step, so that their state moves within a few steps."""
    scaler = torch.amp.GradScaler

    class Restless(scaler):  # type: ignore[misc, valid-type]
        def __init__(self, device: str, *, enabled: bool) -> None:
            super().__init__(device, init_scale=init_scale, growth_interval=2, enabled=enabled)

    torch.amp.GradScaler = Restless  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        torch.amp.GradScaler = scaler  # type: ignore[misc]
