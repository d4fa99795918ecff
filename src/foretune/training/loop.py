"""The loop. It never waits for the device to log: numbers are read when they have arrived."""

import math
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any, Literal, NoReturn, TypeVar

from foretune.accelerator.memory import free_memory
from foretune.choices.run_schedule import RunSchedule
from foretune.choices.schedule import learning_rate
from foretune.core.interrupts import StoppedAtOnce, StopRequest
from foretune.core.memory_errors import lacking_memory
from foretune.core.observer import Observer, StepReport
from foretune.core.vocabulary import RunPhase, TimePhase
from foretune.data.batch import Batch
from foretune.data.loading import BatchLoader, loader
from foretune.record.events import EventLog
from foretune.training.compiling_notice import compiling_notice
from foretune.training.instruments import Instrument, Instruments
from foretune.training.length import Length
from foretune.training.memory_now import MemoryNow
from foretune.training.meter import Meter, StepReading
from foretune.training.not_finite import NotFinite, first_not_finite
from foretune.training.phases import PhaseClock
from foretune.training.preparing import Prepared
from foretune.training.ranks import Agreement, Wants, lost_process
from foretune.training.saver import Saved, Saver
from foretune.training.state import collect
from foretune.training.validating import Validator

T = TypeVar("T")
# More passes than any run makes: where time decides, nobody knows the last one beforehand.
_ENDLESS = 2**62
_ALWAYS = frozenset({"step", "loss", "grad_norm", "lr", "step_s"})


@dataclass
class Tally:
    """What the loop remembers for the record."""

    step_times_s: dict[int, float] = field(default_factory=dict)
    """By step, counted from 0."""
    first_loss: float | None = None
    last_loss: float | None = None
    held_out_losses: list[tuple[int, float]] = field(default_factory=list)
    validated_steps: set[int] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the whole run by phase, pauses included."""

    def add_phases(self, phases_s: Mapping[str, float]) -> None:
        for name, seconds in phases_s.items():
            self.phases_s[name] = self.phases_s.get(name, 0.0) + seconds


@dataclass(kw_only=True)
class Loop:
    """A prepared run from its first step to its last."""

    prepared: Prepared
    schedule: RunSchedule
    saver: Saver
    validator: Validator
    events: EventLog
    observer: Observer
    stop: StopRequest
    clock: PhaseClock
    tally: Tally
    length: Length
    instruments: Sequence[Instrument] = ()
    now: Callable[[], float] = time.monotonic
    num_done: int = 0
    """Optimizer steps of the whole run so far."""
    meter: Meter = field(init=False)
    _last_report_s: float = -math.inf
    _stops: bool = False
    _has_validated: bool = False
    _last_saved: int | None = None
    """The steps that were done at the last save."""
    _failure: Exception | None = None
    _agreement: Agreement = field(init=False)

    def __post_init__(self) -> None:
        self._agreement = Agreement(self.prepared.ranks, at_once=self.length.limit_s is not None)
        self.meter = Meter(self.clock, MemoryNow(self.prepared.device))

    def run(self, first_step: int) -> Literal["finished", "interrupted"]:
        """Trains until the last step or until asked to stop."""
        self.clock.restart()
        try:
            with closing(self.steps(first_step)) as steps:
                return self._execute(first_step, steps)
        except BaseException:
            self._finish_save()
            raise
        finally:
            self.saver.close()
            self.tally.add_phases(self.clock.lap().host_s)

    def _execute(self, first_step: int, steps: Iterator[int]) -> Literal["finished", "interrupted"]:
        self.num_done, ends = first_step, False

        def is_last(done: int) -> bool:
            nonlocal ends
            ends = self._is_over(done, is_first=done == first_step)
            return ends

        phases = self.schedule.phases(
            first_step, is_last, is_stopping=lambda _: self._stops, validated=self.tally.validated_steps
        )
        try:
            for phase, done in phases:
                if phase is RunPhase.STEP:
                    self.num_done = next(steps)
                    self._look_for_saved()
                elif phase is RunPhase.SAVE:
                    self._save(done)
                else:
                    self._validate(done)
        except StoppedAtOnce:
            ends = False
            if self._last_saved != self.num_done > first_step:
                self._save(self.num_done)
        self._report_saved(self.saver.take(waits=True))
        self.drain()
        self._raise_failure()
        return "finished" if ends else "interrupted"

    def _is_over(self, done: int, *, is_first: bool) -> bool:
        """Whether no step follows; asks the other processes what they want, so that all do the same after a step."""
        is_over = self.length.is_over(done, self.meter.num_pending)
        if is_first:
            return is_over
        # The clocks of processes differ: that of the first one counts.
        own = Wants(self.stop.reason, is_over and self.prepared.ranks.is_first, self._failure is not None)
        agreed = self._agreement.after_step(own)
        if agreed.has_failed:
            self._fail()
        if agreed.stop is not None:
            self.stop.reason = agreed.stop
        self._stops = agreed.stop is not None
        return agreed.is_over if self.length.limit_s is not None else is_over

    def _fail(self) -> NoReturn:
        if self._failure is None:
            self.drain()  # what another process has read before is still on its way
            self._report_saved(self.saver.take(waits=True))
        raise self._failure or NotFinite("another process failed after its last step")

    def _raise_failure(self) -> None:
        """Before something is done that the next agreement would be too late for; the others find the same by then."""
        if self._failure is not None:
            raise self._failure

    def steps(self, first_step: int) -> Generator[int, None, None]:
        """Makes one optimizer step after the other, as long as it is asked for one; yields how many are done."""
        p = self.prepared
        accumulation = p.experiment.train.gradient_accumulation
        instruments = Instruments(self.instruments, self.events, self.observer, self.tally.warnings)
        batches = iter(self._batches(first_step))
        # Starting the workers of the loader is not a part of the first step.
        self.clock.restart()
        try:
            for step in count(first_step):
                self.length.begin()
                with self.clock.phase(TimePhase.LOGGING, in_trace=False):
                    instruments.before_step(step)
                lr = learning_rate(p.experiment.optimizer, step, p.num_steps)
                # With the first step nothing is lost, and where it compiles it takes minutes.
                may_leave = step == first_step and p.ranks.size == 1
                try:
                    notice = self._notice("compiling in the first step", is_first=step == first_step)
                    with self.stop.at_once() if may_leave else nullcontext(), notice:
                        outcome = p.step(
                            step, lr, self._ready(islice(batches, accumulation)), accumulation, self.clock.phase
                        )
                except Exception:
                    # The steps before it were made; what is already known of them is reported first.
                    self._report(self.meter.arrived())
                    raise
                self.meter.record(step, lr, outcome)
                if self._report_is_due():
                    with self.clock.phase(TimePhase.LOGGING):
                        self._report_arrived()
                with self.clock.phase(TimePhase.LOGGING, in_trace=False):
                    instruments.after_step(step)
                yield step + 1
        finally:
            instruments.close()

    def _notice(self, what: str, *, is_first: bool) -> AbstractContextManager[None]:
        """The first pass of each kind compiles, if anything does."""
        compiles = is_first and self.prepared.experiment.levers.compile != "off" and self.prepared.ranks.is_first
        return compiling_notice(self.observer, what) if compiles else nullcontext()

    def _ready(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches on the device with everything encoded, one at a time: waiting for one is a phase of its own."""
        p = self.prepared
        while True:
            with self.clock.phase(TimePhase.DATA):
                batch = next(batches, None)
            if batch is None:
                return
            with self.clock.phase(TimePhase.ENCODE):
                batch = p.encoders.ready(batch, p.device)
            yield batch

    def _batches(self, first_step: int) -> BatchLoader:
        p = self.prepared
        accumulation = p.experiment.train.gradient_accumulation
        return loader(
            p.batch_maker,
            first_step * accumulation,
            _ENDLESS if p.num_steps is None else p.num_steps * accumulation,
            num_workers=p.experiment.data.num_workers,
            device=p.device,
        )

    def drain(self) -> None:
        """Reports what the device still owes; waits for it."""
        self._report(self.meter.drain())

    def _report_is_due(self) -> bool:
        """Where time decides when the run is over, every step's must be known at once."""
        now_s = self.now()
        if self.length.limit_s is None and now_s - self._last_report_s < self.observer.patience_s:
            return False
        self._last_report_s = now_s
        return True

    def _report_arrived(self) -> None:
        """One of several processes does not leave by itself: the others would wait for it."""
        try:
            self._report(self.meter.arrived())
        except NotFinite as failure:
            if self.prepared.ranks.size == 1:
                raise
            self._failure = failure

    def _report(self, readings: Iterable[StepReading]) -> None:
        p = self.prepared
        samples_per_step = p.experiment.samples_per_step()
        for reading in readings:
            self._refuse_not_finite(reading)
            self.tally.step_times_s[reading.step] = reading.step_s
            self.length.stepped(reading.step_s)
            self.tally.add_phases(reading.phases_s)
            if self.tally.first_loss is None:
                self.tally.first_loss = reading.loss
            self.tally.last_loss = reading.loss
            self.events.append("step", **_step_fields(reading))
            self.observer.stepped(
                StepReport(
                    **vars(reading),
                    num_steps=p.num_steps,
                    samples_per_step=samples_per_step,
                    left_s=self.length.left_s(),
                )
            )

    def _refuse_not_finite(self, reading: StepReading) -> None:
        """Weights that took a gradient without a value are lost, though the loss before it had one.

        Where the loss is scaled, such a gradient only means that the step was skipped and the scale lowered.
        """
        norm = reading.grad_norm
        if not math.isfinite(reading.loss):
            raise NotFinite(f"the loss of step {reading.step + 1} is {reading.loss}", reading.step)
        if norm is not None and not math.isfinite(norm) and not self.prepared.step.scaler.is_enabled():
            raise NotFinite(f"the gradient of step {reading.step + 1} has norm {norm}", reading.step)

    def _save(self, done: int) -> None:
        with self.clock.phase(TimePhase.SAVE):
            self._write_checkpoint(done)
        self._paused(done)

    def _write_checkpoint(self, done: int) -> None:
        self._last_saved = done
        # The device is idle here, so everything it owes is read: a checkpoint after a non-finite loss must not be.
        self._raise_failure()
        self._report(self.meter.drain())
        # The numbers of the steps are on the disk before the checkpoint that makes repeating them needless.
        self.events.flush()
        self._report_saved(self.saver.take(waits=True))
        counted_s = None if self.length.limit_s is None else self.length.counted_s
        self._report_saved(self.saver.save(collect(self.prepared.step, done, counted_s)))

    def _report_saved(self, saved: Saved | None) -> None:
        if saved is None or not self.prepared.ranks.is_first:
            return
        done, path = saved
        self.events.append("saved", step=done, path=path.name)
        self.events.flush()
        self.observer.saved(done, path)

    def _look_for_saved(self) -> None:
        """Reports an asynchronous save that is done. One that failed ends the run in all processes after a step."""
        try:
            self._report_saved(self.saver.take(waits=False))
        except Exception as failure:
            if self.prepared.ranks.size == 1:
                raise
            self._failure = failure

    def _finish_save(self) -> None:
        """Of a run that fails for another reason: what was copied before is still good."""
        try:
            self._report_saved(self.saver.take(waits=True))
        except Exception as error:  # noqa: BLE001 - the reason of the run's end is the other one
            self.tally.warnings.append(f"A checkpoint was not written: {type(error).__name__}: {error}")

    def _paused(self, done: int) -> None:
        """Ends a pause, which is no part of a step; its time is kept beside theirs, so that all of it is reported."""
        phases_s = self.meter.restart_clock().host_s
        self.tally.add_phases(phases_s)
        self.events.append("paused", step=done, phases_s=_rounded(phases_s))

    def _validate(self, done: int) -> None:
        """The held-out loss and samples. Where one of them fails the other is still there, and the training goes on."""
        with self.clock.phase(TimePhase.VALIDATION):
            self._look(done)
        self._paused(done)

    def _look(self, done: int) -> None:
        self._raise_failure()
        self._report(self.meter.drain())
        with self._notice("compiling in the first validation", is_first=not self._has_validated):
            loss = self._attempted(done, self.validator.held_out_loss)
            samples = self._attempted(done, lambda: self.validator.samples(done)) or ()
        self._has_validated = True
        self.events.append("validated", step=done, held_out_loss=loss, samples=[path.name for path in samples])
        if loss is not None:
            self.tally.held_out_losses.append((done, loss))
        self.observer.validated(done, loss, samples)

    def _attempted(self, done: int, validate: Callable[[], T]) -> T | None:
        """What a part of a validation gives; a failure is reported and recorded."""
        try:
            return validate()
        except Exception as error:  # whatever sampling or evaluation can raise, memory included
            parallel = self.prepared.experiment.parallel
            if self.prepared.ranks.size > 1 and lost_process(error, parallel) is not None:
                raise
            if isinstance(error, NotFinite):
                self._refuse_damaged_weights(error)
            text = f"Validation after step {done} failed: {type(error).__name__}: {error}"
            self.tally.warnings.append(text)
            self.events.append("validation failed", step=done, error=text, traceback=traceback.format_exc())
            self.observer.warning(f"{text}. {self._after_failed_validation(error)}")
            free_memory()
            return None

    def _refuse_damaged_weights(self, error: NotFinite) -> None:
        """Ends a run that has nothing left to train. One of several processes leaves this to their next save."""
        step = self.prepared.step
        averages = {} if step.ema is None else step.ema.average
        name = first_not_finite(chain(step.trained.items(), averages.items()))
        if name is not None and self.prepared.ranks.size == 1:
            raise NotFinite(f"{error}, because {name} holds NaN or infinite values") from error

    def _after_failed_validation(self, error: Exception) -> str:
        is_memory = lacking_memory(error) == "device"
        if is_memory and self.prepared.family.has_latents and not self.validator.vae_tiling:
            return "The training continues. To decode samples with less memory, run with: levers.vae_tiling=true"
        return "The training continues."


def _step_fields(reading: StepReading) -> dict[str, Any]:
    """A step as an event. What was not measured is left out; phases are rounded to a tenth of a microsecond."""
    fields = {name: value for name, value in vars(reading).items() if name in _ALWAYS or value}
    for name in ("phases_s", "host_phases_s"):
        if name in fields:
            fields[name] = _rounded(fields[name])
    if reading.num_owed is not None:
        fields["num_owed"] = reading.num_owed
    return fields


def _rounded(phases_s: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 7) for name, seconds in phases_s.items()}
