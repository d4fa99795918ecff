"""`profile`: a few steps of an experiment under the profiler, in a run directory without checkpoints."""

import dataclasses
from pathlib import Path

from foretune.choices.experiment import Experiment
from foretune.choices.running import Profile
from foretune.config.reading import Asked
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.models.locating import locate
from foretune.record.run_directory import RunDirectory
from foretune.training.preparing import prepare
from foretune.training.session import Session

NUM_STEPS_BEFORE = 10
"""Steps without the profiler: they warm up, and the speed of the run is theirs."""


def profile(asked: Asked, runs: Path, num_steps: int, observer: Observer) -> RunDirectory:
    """Makes some steps without and `num_steps` with the profiler; returns the run directory with the trace in it."""
    asked = dataclasses.replace(asked, experiment=_shortened(asked, num_steps))
    folder, revision = locate(asked.model)
    prepared = prepare(asked.experiment, folder, observer)
    run = RunDirectory.create(runs, asked.experiment.name)
    run.write_experiment(
        asked.as_asked, asked.experiment, {**prepared.effective, "model_revision": revision, "is_profile": True}
    )
    session = Session(run, prepared, observer, steps_only=True, warnings=asked.warnings)
    outcome = session.run_loop()
    run.write_record(session.finish(outcome, session.measured(outcome)))
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
