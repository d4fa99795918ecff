"""One process of a run, from the first line of its log to its record: the loop and everything that watches it.

`train`, `bench` and `profile` are all made of it. They differ in what they prepare and in what they add to the record.
"""

import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Literal

from foretune.accelerator.memory import peak_allocated_bytes, peak_reserved_bytes
from foretune.accelerator.timing import clock_of
from foretune.choices.run_schedule import RunSchedule
from foretune.core.disk_faults import disk_fault
from foretune.core.interrupts import StopRequest
from foretune.core.memory_errors import lacking_memory
from foretune.core.observer import Observer, Observers
from foretune.core.values import Outcome, Plan, RunRecord
from foretune.core.values.plan_time import StepTime
from foretune.core.values.run_record import Measured
from foretune.record.environment import environment_fingerprint, environment_hash
from foretune.record.events import EventLog, SilentLog
from foretune.record.log_lines import SLOWER
from foretune.record.log_order import ASYNCHRONOUS
from foretune.record.log_summary import NOTHING_SAVED
from foretune.record.run_directory import RunDirectory
from foretune.stats.speed import median_step_s, samples_per_s
from foretune.stats.steady import find_steady
from foretune.training.checkpoints import CheckpointStore
from foretune.training.devices import peak_host_bytes, reserved_share_of
from foretune.training.drift_alarm import DriftAlarm
from foretune.training.drift_causes import Reading
from foretune.training.failed_step import explained
from foretune.training.length import Length
from foretune.training.loop import Loop, Tally
from foretune.training.not_finite import NotFinite
from foretune.training.page_locking import PageLockingNotice
from foretune.training.phases import PhaseClock
from foretune.training.places import watched_by
from foretune.training.plan_alarm import PlanAlarm
from foretune.training.preparing import Prepared
from foretune.training.profiling.instrument import profilers
from foretune.training.ranks import lost_process
from foretune.training.run_totals import Totals, measured_energy, totals_of_run
from foretune.training.saver import Saver
from foretune.training.telemetry.sampler import Sampler, open_sensors
from foretune.training.validating import validator_for
from foretune.training.watchdog import Watchdog, stacks_text
from foretune.training.watchers import Watchers


class Session:
    """The loop of a prepared run with its log, sensors, profiler and alarms."""

    def __init__(
        self,
        run: RunDirectory,
        prepared: Prepared,
        observer: Observer,
        *,
        stop: StopRequest | None = None,
        steps_only: bool = False,
        warnings: Iterable[str] = (),
        events: EventLog | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`steps_only`: neither checkpoints nor validation, nor an alarm when the steps are slow.

        `now` decides when steps are reported again.
        """
        self.run, self.prepared = run, prepared
        stop = StopRequest() if stop is None else stop
        self.environment = environment_fingerprint()
        is_first = prepared.ranks.is_first
        if is_first:
            run.write_environment(self.environment)
        if events is None:
            events = EventLog(run.events) if is_first else SilentLog()
        self.events = events
        # The first process of each host reads the sensors of the GPUs that the run uses there.
        self._watched = watched_by(prepared.ranks.rank, prepared.places)
        self.sampler = Sampler(self.events, open_sensors(self._watched) if self._watched else ())
        experiment, tally = prepared.experiment, Tally(warnings=list(warnings))
        clock = PhaseClock(clock_of(prepared.device))

        def warn(text: str) -> None:
            tally.warnings.append(text)
            observer.warning(text)

        watches_speed = is_first and not steps_only
        ranks, timeout_s = prepared.ranks, experiment.parallel.timeout_s
        watchdogs = (Watchdog(run.path, ranks.rank, timeout_s),) if ranks.size > 1 else ()
        self.loop = Loop(
            prepared=prepared,
            schedule=RunSchedule.of(experiment, steps_only=steps_only),
            saver=_saver(run, prepared),
            validator=validator_for(
                prepared, run.samples, stop, watchdogs[0].progressed if watchdogs else lambda: None
            ),
            events=self.events,
            observer=Observers(observer, self._watchers(observer, tally.warnings)) if watches_speed else observer,
            stop=stop,
            clock=clock,
            tally=tally,
            length=Length.of(experiment.train, prepared.num_steps),
            instruments=(
                *watchdogs,
                *(profilers(prepared, clock, run, self.events, observer) if is_first else ()),
                self.sampler,
                *((PageLockingNotice(warn),) if is_first else ()),
            ),
            now=now,
        )
        self.started_s = self._ended_s = 0.0

    def _watchers(self, observer: Observer, warnings: list[str]) -> Watchers:
        """What they find is reported to people at once, the log and the record."""

        def warn(kind: str, text: str, **fields: Any) -> None:
            self.events.append(kind, text=text, **fields)
            warnings.append(text)
            observer.warning(text)

        def readings() -> list[tuple[float, Reading]]:
            return list(self.sampler.recent)

        reserved = reserved_share_of(self.prepared.device)
        found: list[Observer] = [DriftAlarm(lambda alarm: warn("alarm", **vars(alarm)), readings, reserved)]
        planned = planned_time(self.run.read_plan(), self.prepared.effective["experiment_hash"])
        if planned is not None:
            shows_speed = self.prepared.experiment.shows_speed
            found.append(PlanAlarm(planned, lambda alarm: warn(SLOWER, **vars(alarm)), readings, shows_speed, reserved))
        return Watchers(found, self.events, observer, warnings)

    def run_loop(self, first_step: int = 0) -> Outcome:
        """Executes the schedule. What goes wrong is an outcome with its reason, so that a record is always written."""
        loop = self.loop
        how = {ASYNCHRONOUS: True} if self.prepared.experiment.save.asynchronous else {}
        self.events.append("started", first_step=first_step, environment=self.environment, **how)
        self.started_s = time.perf_counter()
        try:
            end = loop.run(first_step)
        except NotFinite as error:
            status: Literal["out of memory", "failed"] = "failed"
            reason = self._not_finite(error)
        except Exception as error:  # noqa: BLE001 - the record of a crash is a record too
            fault = disk_fault(error, unnamed=f"A file in {self.run.path}")
            lost = self._lost_process(error)
            status, reason = status_of(error), fault or lost or f"{type(error).__name__}: {error}"
            self.events.append("crashed", traceback=traceback.format_exc())
        else:
            if end == "interrupted":
                when = "after saving" if loop.num_done > first_step else "before its first step"
                reason = f"stopped by {loop.stop.reason} {when}"
                return Outcome(status="interrupted", steps_done=loop.num_done, reason=reason)
            return Outcome(status="finished", steps_done=loop.num_done)
        finally:
            self._ended_s = time.perf_counter()
            self.sampler.close()
        if loop.schedule.steps_only:
            return Outcome(status=status, steps_done=loop.num_done, reason=reason)
        # What was done since the last checkpoint is lost.
        saved = loop.saver.store.steps()
        return Outcome(status=status, steps_done=saved[-1] if saved else 0, reason=reason)

    def _not_finite(self, error: NotFinite) -> str:
        """Names the first value that is not finite; says so if that takes a while, because steps are repeated."""
        loop = self.loop
        store = None if loop.schedule.steps_only else loop.saver.store
        loop.observer.message(f"{error}. Looking for the first NaN or infinite value.")
        try:
            sentences = explained(error, self.prepared, store, lambda: loop.stop.reason is not None)
        except Exception as failure:  # noqa: BLE001 - the search may fail, and the run still needs its record
            self.events.append("crashed", traceback=traceback.format_exc())
            sentences = [f"The search for the first value failed ({type(failure).__name__}: {failure})"]
        return ". ".join([str(error), NOTHING_SAVED, *sentences])

    def _lost_process(self, error: Exception) -> str | None:
        """That another process is gone or hangs, where this is what the error means."""
        if self.prepared.ranks.size == 1:
            return None
        lost = lost_process(error, self.prepared.experiment.parallel)
        return None if lost is None else lost + stacks_text(self.run.path)

    def speed_times_s(self) -> list[float]:
        """The times of all steps but those that a profiler made slower."""
        shows_speed = self.prepared.experiment.shows_speed
        return [seconds for step, seconds in self.loop.tally.step_times_s.items() if shows_speed(step)]

    def _totals(self, outcome: Outcome) -> Totals:
        """Memory and energy of all processes; what is missing in them is a warning of the record."""
        device, ranks, warnings = self.prepared.device, self.prepared.ranks, self.loop.tally.warnings
        energy_j, mean_power_w, missing = measured_energy(self.sampler.energy, self._watched)
        if missing is not None:
            warnings.append(missing)
        own = Totals(
            peak_device_bytes=peak_allocated_bytes(device),
            peak_reserved_bytes=peak_reserved_bytes(device),
            peak_host_bytes=peak_host_bytes(),
            energy_j=energy_j,
            mean_power_w=mean_power_w,
        )
        is_whole = outcome.status in ("finished", "interrupted")
        try:
            totals, missing = totals_of_run(own, ranks, self.prepared.places, is_whole=is_whole)
        except Exception as error:
            if self._lost_process(error) is None:
                raise
            # The run is over, and its record is written whatever happened to the others since.
            totals, missing = totals_of_run(own, ranks, self.prepared.places, is_whole=False)
        if missing is not None:
            warnings.append(missing)
        return totals

    def measured(self, outcome: Outcome, prepare_s: float | None = None) -> Measured:
        """Every figure that the loop gives. All processes of the run call it."""
        tally, experiment = self.loop.tally, self.prepared.experiment
        times_s = self.speed_times_s()
        num_warmup = find_steady(times_s).num_warmup
        totals = self._totals(outcome)
        return Measured(
            num_step_times=len(times_s),
            median_step_s=median_step_s(times_s, num_warmup=num_warmup),
            samples_per_s=samples_per_s(times_s, experiment.samples_per_step(), num_warmup=num_warmup),
            peak_device_bytes=totals.peak_device_bytes,
            peak_host_bytes=totals.peak_host_bytes,
            first_loss=tally.first_loss,
            last_loss=tally.last_loss,
            held_out_losses=tuple(tally.held_out_losses),
            phases_s=tally.phases_s or None,
            num_warmup_steps=num_warmup,
            peak_reserved_bytes=totals.peak_reserved_bytes,
            energy_j=totals.energy_j,
            mean_power_w=totals.mean_power_w,
            counted_s=None if experiment.train.seconds is None else self.loop.length.counted_s,
            prepare_s=prepare_s,
        )

    def finish(self, outcome: Outcome, measured: Measured) -> RunRecord:
        """Ends the log; returns the record, with the plan that was stored before the first step."""
        self.events.append("ended", status=outcome.status, steps_done=outcome.steps_done, reason=outcome.reason)
        self.events.close()
        return self.record(outcome, measured)

    def record(self, outcome: Outcome, measured: Measured) -> RunRecord:
        """Returns the record of a run whose loop has ended."""
        effective = self.prepared.effective
        return RunRecord(
            run_id=self.run.run_id,
            question_hash=effective["question_hash"],
            experiment_hash=effective["experiment_hash"],
            outcome=outcome,
            environment=self.environment,
            environment_hash=environment_hash(self.environment),
            plan=self.run.read_plan(),
            measured=measured,
            num_trainable_params=effective["num_trained_params"],
            num_params=effective["num_params"],
            wall_s=self._ended_s - self.started_s,
            warnings=tuple(self.loop.tally.warnings),
        )


def planned_time(plan: Plan | None, experiment_hash: str) -> StepTime | None:
    """The planned step, if the plan is for the run as it is computed now: a resumed one may be computed otherwise."""
    return None if plan is None or plan.experiment != experiment_hash else plan.time


def _saver(run: RunDirectory, prepared: Prepared) -> Saver:
    save, ranks = prepared.experiment.save, prepared.ranks
    if save.asynchronous:
        ranks = ranks.apart()
    return Saver(CheckpointStore(run.checkpoints, save.keep, ranks), is_asynchronous=save.asynchronous)


def status_of(error: Exception) -> Literal["out of memory", "failed"]:
    """Running out of memory is a status of its own: it has its own remedies."""
    return "failed" if lacking_memory(error) is None else "out of memory"
