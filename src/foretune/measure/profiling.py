"""`profile`: a few steps of an experiment under the profiler, in a run directory without checkpoints."""

import dataclasses
import time
from pathlib import Path

from foretune.choices.experiment import Experiment
from foretune.choices.running import Profile
from foretune.config.reading import Asked
from foretune.core.errors import UserError
from foretune.core.interrupts import StopRequest
from foretune.core.observer import Observer
from foretune.core.values.run_record import Measured
from foretune.measure.steps_alone import make_steps
from foretune.models.locating import locate
from foretune.record.environment import environment_fingerprint
from foretune.record.events import EventLog
from foretune.record.run_directory import RunDirectory
from foretune.stats.speed import median_step_s, samples_per_s
from foretune.training.checkpoints import CheckpointStore
from foretune.training.devices import peak_device_bytes, peak_host_bytes, peak_reserved_bytes
from foretune.training.loop import Loop
from foretune.training.preparing import prepare
from foretune.training.profiling.instrument import profilers
from foretune.training.recording import record_of
from foretune.training.train import build_validator

NUM_STEPS_BEFORE = 10
"""Steps without the profiler: they warm up, and say how fast the run is when nobody looks."""
_NUM_WARMUP_STEPS = 2


def profile(asked: Asked, runs: Path, num_steps: int, observer: Observer) -> RunDirectory:
    """Makes some steps without and `num_steps` with the profiler; returns the run directory with the trace in it."""
    asked = dataclasses.replace(asked, experiment=_shortened(asked, num_steps))
    folder, revision = locate(asked.model)
    prepared = prepare(asked.experiment, folder, observer)
    run = RunDirectory.create(runs, asked.experiment.name)
    run.write_experiment(asked.as_asked, asked.experiment, {**prepared.effective, "model_revision": revision})
    environment = environment_fingerprint()
    run.write_environment(environment)
    events = EventLog(run.events)
    events.append("started", first_step=0, environment=environment)
    store = CheckpointStore(run.checkpoints, prepared.experiment.save.keep)
    loop = Loop(prepared, store, build_validator(run, prepared), events, observer, StopRequest())
    loop.instruments = profilers(run, loop)
    began_s = time.perf_counter()
    outcome = make_steps(loop)
    wall_s = time.perf_counter() - began_s
    events.append("ended", status=outcome.status, steps_done=outcome.steps_done, reason=outcome.reason)
    events.close()
    record = record_of(
        run,
        prepared,
        outcome=outcome,
        environment=environment,
        measured=_measured(loop),
        wall_s=wall_s,
        warnings=(*asked.warnings, *loop.tally.warnings),
    )
    run.write_record(record)
    if outcome.status != "finished":
        raise UserError(
            f"{outcome.status.capitalize()} after step {outcome.steps_done}: {outcome.reason}. See {run.path}"
        )
    return run


def _shortened(asked: Asked, num_steps: int) -> Experiment:
    """The same training, stopped after the steps that are looked at, without validation."""
    experiment = asked.experiment
    train = experiment.train.model_copy(update={"steps": NUM_STEPS_BEFORE + num_steps, "epochs": None, "seconds": None})
    validation = experiment.validation.model_copy(update={"every": None, "prompts": (), "num_held_out": 0})
    look = Profile(at_step=NUM_STEPS_BEFORE + 1, steps=num_steps)
    return experiment.model_copy(update={"train": train, "validation": validation, "profile": look})


def _measured(loop: Loop) -> Measured:
    """Speed is that of the steps that nobody looked at."""
    times_s = loop.tally.step_times_s[:NUM_STEPS_BEFORE]
    device, samples = loop.prepared.device, loop.prepared.experiment.samples_per_step()
    return Measured(
        num_step_times=len(times_s),
        median_step_s=median_step_s(times_s, num_warmup=_NUM_WARMUP_STEPS),
        samples_per_s=samples_per_s(times_s, samples, num_warmup=_NUM_WARMUP_STEPS),
        peak_device_bytes=peak_device_bytes(device),
        peak_reserved_bytes=peak_reserved_bytes(device),
        peak_host_bytes=peak_host_bytes(),
        first_loss=loop.tally.first_loss,
        last_loss=loop.tally.last_loss,
        phases_s=loop.tally.phases_s or None,
        num_warmup_steps=min(_NUM_WARMUP_STEPS, len(times_s)),
    )
