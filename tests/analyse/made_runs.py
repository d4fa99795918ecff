"""Run directories with the numbers a test wants, written without training anything."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.core.values import Outcome, RunRecord
from foretune.core.values.run_record import Measured, Status
from foretune.record.environment import environment_hash
from foretune.record.events import EventLog
from foretune.record.run_directory import RunDirectory

ENVIRONMENT: dict[str, Any] = {"cpu": "one", "packages": {"torch": "2.9"}, "source": {"commit": "1a2b", "dirty": False}}


def asked(**sections: Any) -> Experiment:
    """An experiment; what it names as model and data is not looked at."""
    train = {"steps": 20, "batch_size": 2, **sections.pop("train", {})}
    return Experiment.model_validate({"model": "owner/tiny", "data": {"kind": "shapes"}, "train": train, **sections})


def make_run(
    path: Path,
    step_times_s: Sequence[float],
    *,
    experiment: Experiment | None = None,
    environment: dict[str, Any] | None = None,
    status: Status | None = "finished",
    peak_host_bytes: int = 2**30,
    losses: Sequence[float] | None = None,
    effective: dict[str, Any] | None = None,
    data_share: float = 0.0,
) -> Path:
    """A run directory at a path. Without a status it has no record, as of a run that was killed."""
    path.mkdir(parents=True)
    run, experiment, environment = RunDirectory(path), experiment or asked(), environment or ENVIRONMENT
    run.write_experiment({}, experiment, effective or {})
    run.write_environment(environment)
    events = EventLog(run.events)
    events.append("started", first_step=0, environment=environment)
    for step, step_s in enumerate(step_times_s):
        loss = losses[step] if losses is not None else 1.0 / (step + 1)
        phases_s = {"data": data_share * step_s} if data_share else {}
        phases_s["forward"] = (1 - data_share) * step_s
        events.append("step", step=step, loss=loss, step_s=step_s, phases_s=phases_s)
    events.close()
    if status is not None:
        run.write_record(
            RunRecord(
                run_id=run.run_id,
                question_hash="0" * 16,
                experiment_hash=experiment.whole_hash(),
                outcome=Outcome(status=status, steps_done=len(step_times_s)),
                environment=environment,
                environment_hash=environment_hash(environment),
                measured=Measured(num_step_times=len(step_times_s), peak_host_bytes=peak_host_bytes),
                num_trainable_params=1,
                num_params=2,
                wall_s=sum(step_times_s),
            )
        )
    return path


def make_repeats(folder: Path, levels_s: Sequence[float], num_steps: int = 20, **others: Any) -> Path:
    """Runs that differ in their level only, below one folder."""
    for number, level_s in enumerate(levels_s):
        # A little unlike each other, as steps are.
        times = [level_s * (1 + 0.002 * (step % 3)) for step in range(num_steps)]
        make_run(folder / f"run-{number:02d}", times, **others)
    return folder
