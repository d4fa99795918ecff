"""The loop. It never waits for the device to log: numbers are read when they have arrived."""

import dataclasses
import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeVar

from foretune.data.loading import BatchLoader, loader
from foretune.record.events import EventLog
from foretune.run.checkpoints import CheckpointStore
from foretune.run.encoding import free_memory
from foretune.run.interrupts import StopRequest
from foretune.run.meter import Meter, Reading
from foretune.run.observer import Observer, StepReport
from foretune.run.preparing import Prepared
from foretune.run.state import collect
from foretune.run.validating import Validator
from foretune.step.optimizing import learning_rate

T = TypeVar("T")


@dataclass
class Tally:
    """What the loop remembers for the record."""

    step_times_s: list[float] = field(default_factory=list)
    first_loss: float | None = None
    last_loss: float | None = None
    held_out_losses: list[tuple[int, float]] = field(default_factory=list)
    validated_steps: set[int] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)


class NotFinite(Exception):
    """The loss or its gradient is no longer a number; nothing after it can be."""


@dataclass
class Loop:
    """A prepared run from its first step to its last."""

    prepared: Prepared
    store: CheckpointStore
    validator: Validator
    events: EventLog
    observer: Observer
    stop: StopRequest
    tally: Tally = field(default_factory=Tally)
    meter: Meter = field(default_factory=Meter)

    def run(self, first_step: int) -> tuple[int, Literal["finished", "interrupted"]]:
        """Trains until the last step or until asked to stop; returns the steps done."""
        choices, done = self.prepared.experiment, first_step
        if self._validation_is_due(done) and done not in self.tally.validated_steps:
            # At the start, or where the run was stopped between a checkpoint and its validation.
            self._validate(done)
        for done in self.steps(first_step):
            last = done == self.prepared.num_steps
            stopping = bool(self.stop)  # once: a signal between the two questions would leave without saving
            if last or stopping or _due(done, choices.save.every):
                self._save(done)
            if stopping and not last:
                return done, "interrupted"
            if self._validation_is_due(done):
                self._validate(done)
        return done, "finished"

    def steps(self, first_step: int) -> Iterator[int]:
        """Makes one optimizer step after the other; yields how many are done."""
        p = self.prepared
        accumulation = p.experiment.train.gradient_accumulation
        batches = iter(self._batches(first_step))
        self.meter.restart_clock()
        for step in range(first_step, p.num_steps):
            lr = learning_rate(p.experiment.optimizer, step, p.num_steps)
            micro_batches = (p.encoders.ready(batch, p.device) for batch in islice(batches, accumulation))
            outcome = p.step(step, lr, micro_batches, accumulation)
            self.meter.record(step, lr, outcome)
            self._report(self.meter.arrived())
            yield step + 1

    def _batches(self, first_step: int) -> BatchLoader:
        p = self.prepared
        accumulation = p.experiment.train.gradient_accumulation
        return loader(
            p.batch_maker,
            first_step * accumulation,
            p.num_steps * accumulation,
            num_workers=p.experiment.data.num_workers,
            pin_memory=p.device.type == "cuda",
        )

    def _report(self, readings: Iterable[Reading]) -> None:
        p = self.prepared
        for reading in readings:
            self._refuse_not_finite(reading)
            self.tally.step_times_s.append(reading.step_s)
            if self.tally.first_loss is None:
                self.tally.first_loss = reading.loss
            self.tally.last_loss = reading.loss
            self.events.append("step", **dataclasses.asdict(reading))
            self.observer.stepped(
                StepReport(
                    **dataclasses.asdict(reading),
                    num_steps=p.num_steps,
                    samples_per_step=p.experiment.samples_per_step(),
                )
            )

    def _refuse_not_finite(self, reading: Reading) -> None:
        """Weights that took a gradient without a value are lost, though the loss before it had one.

        Where the loss is scaled, such a gradient only means that the step was skipped and the scale lowered.
        """
        norm = reading.grad_norm
        if not math.isfinite(reading.loss):
            raise NotFinite(f"the loss of step {reading.step + 1} is {reading.loss}")
        if norm is not None and not math.isfinite(norm) and not self.prepared.step.scaler.is_enabled():
            raise NotFinite(f"the gradient of step {reading.step + 1} has norm {norm}")

    def _save(self, done: int) -> None:
        # The device is idle here, so everything it owes is read: a checkpoint after a non-finite loss must not be.
        self._report(self.meter.drain())
        # The numbers of the steps are on the disk before the checkpoint that makes repeating them needless.
        self.events.flush()
        path = self.store.write(collect(self.prepared.step, done))
        self.events.append("saved", step=done, path=path.name)
        self.events.flush()
        self.observer.saved(done, path)
        self.meter.restart_clock()

    def _validation_is_due(self, done: int) -> bool:
        return done in (0, self.prepared.num_steps) or _due(done, self.prepared.experiment.validation.every)

    def _validate(self, done: int) -> None:
        """The held-out loss and samples. Where one of them fails the other is still there, and the training goes on."""
        self._report(self.meter.drain())
        loss = self._attempted(done, self.validator.held_out_loss)
        samples = self._attempted(done, lambda: self.validator.samples(done)) or ()
        self.events.append("validated", step=done, held_out_loss=loss, samples=[path.name for path in samples])
        if loss is not None:
            self.tally.held_out_losses.append((done, loss))
        self.observer.validated(done, loss, samples)
        self.meter.restart_clock()

    def _attempted(self, done: int, validate: Callable[[], T]) -> T | None:
        """What a part of a validation gives; that it failed is said and recorded."""
        try:
            return validate()
        except Exception as error:  # noqa: BLE001 - whatever sampling or evaluation can raise, memory included
            text = f"Validation after step {done} failed: {type(error).__name__}: {error}"
            self.tally.warnings.append(text)
            self.events.append("validation failed", step=done, error=text, traceback=traceback.format_exc())
            self.observer.warning(text + ". The training goes on.")
            free_memory()
            return None


def _due(done: int, every: int | None) -> bool:
    return every is not None and done % every == 0
