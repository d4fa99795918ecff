"""`train` and `resume`: an experiment becomes a verified run."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.api.live_steps import LiveSteps
from foretune.api.process_state import torch_kept
from foretune.api.processes import later_rank
from foretune.api.run import Run, RunFailed, RunLike, open_run, path_of
from foretune.api.start import (
    Changes,
    ExperimentFile,
    ExperimentLike,
    announce,
    import_libraries,
    overrides_of,
    read_to_start,
)
from foretune.core.errors import UserError
from foretune.core.extras import require
from foretune.core.interrupts import Interrupted
from foretune.core.main_guard import require_main_guard
from foretune.core.observer import Observer, Observers
from foretune.core.units import bytes_text
from foretune.core.values import Plan
from foretune.reports.remedy_words import settings_text
from foretune.reports.terminal.plan_times import step_text

if TYPE_CHECKING:
    from foretune.choices.experiment import Experiment
    from foretune.config import Asked
    from foretune.training.train import Trained

_RANK_WORKER = "foretune.api.rank_worker"


def train(
    experiment: ExperimentLike,
    changes: Changes | None = None,
    *,
    data: str | Path | None = None,
    runs: str | Path = "runs",
    stop_on_signals: bool = False,
    observer: Observer | None = None,
) -> Run:
    """Trains what an experiment asks for, in this process, and returns the finished run.

    Args:
        experiment: an experiment file, or its content as a mapping; or a model (`"flux.1-dev"`, a Hub id, a folder),
            which is trained as in the file that `init` writes.
        changes: settings for this run by dotted key, `{"train.steps": 100}`.
        data: with a model: the folder of images to train on, or of a packed or encoded set.
        runs: where run directories are made.
        stop_on_signals: finish the step, save and return when SIGINT, SIGTERM, SIGUSR1 or SIGUSR2 arrives, as the
            command line does. Otherwise signals are left alone, and Ctrl-C raises `KeyboardInterrupt`.
        observer: receives the forecast, steps, validations and checkpoints.

    Raises:
        RunFailed: the run crashed or ran out of memory; `error.run` is what it left.
        UserError: it cannot be started; the text says what to change.
    """
    from foretune.config.readiness import TO_TRAIN

    require_main_guard()
    observer = observer or Observer()
    asked = read_to_start(experiment, changes, "Training", TO_TRAIN, Path(runs), data=data)
    if later_rank() is None:
        announce(asked, observer)
        observer = Observers(observer, ExperimentFile(asked, observer, "train", *_elsewhere(runs)))
    if _must_launch(asked.experiment):
        from foretune.models.locating import locate

        locate(asked.model)  # downloaded once, before several processes look for it
        request = {"mapping": asked.as_asked, "name": asked.experiment.name, "runs": str(runs)}
        return _launched(asked.experiment, request, observer)
    is_alone = asked.experiment.parallel.devices == 1  # otherwise the other processes would count as busy ones
    device = asked.experiment.parallel.device
    import_libraries(
        observer, "foretune.training.forecast", "foretune.training.several", warns_if_busy=is_alone, device=device
    )
    from foretune.training.restarts import num_restarts
    from foretune.training.several import train_in_ranks

    # Of several processes the first one plans; the others wait for it where they join. Started again, it continues a
    # run that has its plan.
    is_planned = later_rank() is None and not num_restarts()
    plan = forecast_of(asked, observer) if is_planned else None
    with torch_kept():
        return _finished(train_in_ranks(asked, Path(runs), observer, plan, handles_signals=stop_on_signals))


def resume(
    run: RunLike,
    changes: Changes | None = None,
    *,
    stop_on_signals: bool = False,
    observer: Observer | None = None,
) -> Run:
    """Continues an interrupted run, bit for bit as if it had never stopped. Arguments as for `train`.

    `changes` may alter how it is computed, not what: devices and sharding, batch size and accumulation with the same
    global batch, levers, saving. The results are then the same but for rounding.
    """
    from foretune.record.run_directory import RunDirectory
    from foretune.training.changed_run import read_changed

    require_main_guard()
    observer = observer or Observer()
    directory = RunDirectory.open(path_of(run))
    require("train", "Training")
    overrides = overrides_of(changes)
    _, experiment, effective = directory.read_experiment()
    whole_hash = effective.get("experiment_hash")
    if overrides:
        experiment = read_changed(directory, overrides).experiment
        whole_hash = experiment.whole_hash()
    if _must_launch(experiment):
        return _launched(experiment, {"run": str(directory.path), "overrides": overrides}, observer)
    parallel = experiment.parallel
    import_libraries(observer, "foretune.training.several", warns_if_busy=parallel.devices == 1, device=parallel.device)
    from foretune.training.several import resume_in_ranks

    plan = directory.read_plan()
    if plan is not None and plan.experiment == whole_hash:
        observer.planned(plan)
    with torch_kept():
        return _finished(resume_in_ranks(directory, observer, overrides, handles_signals=stop_on_signals))


def _elsewhere(runs: str | Path) -> tuple[str, ...]:
    return () if Path(runs) == Path("runs") else ("--runs", str(runs))


def _must_launch(experiment: "Experiment") -> bool:
    """Whether the run takes processes that nobody has started. Refuses a system where they cannot be started."""
    from foretune.executors.executor import require_processes
    from foretune.training.ranks import found_ranks

    if experiment.parallel.devices == 1 or found_ranks() is not None:
        return False
    require_processes("Training on several devices", nearest="parallel.devices=1")
    return True


def _launched(experiment: "Experiment", request: dict[str, Any], observer: Observer) -> Run:
    """The run that as many processes made as there are devices."""
    observer.message(f"Starting {experiment.parallel.devices} processes.")
    from foretune.training.launching import launch

    launched = launch(experiment.parallel, _RANK_WORKER, request, observer)
    run = open_run(launched.run())
    if run.record is None:
        if launched.signal is not None:
            raise Interrupted(f"Interrupted by {launched.signal}. Continue with: foretune resume {run.path}")
        raise ProcessesLost(run, launched.why())
    run = replace(run, **launched.answer)
    if run.status not in ("finished", "interrupted"):
        raise RunFailed(run)
    return run


class ProcessesLost(UserError):
    """Processes of a run ended before they could write its record; its last checkpoint is there."""

    exit_code = 1

    def __init__(self, run: Run, why: str) -> None:
        self.run = run
        super().__init__(f"{why}\nContinue with: foretune resume {run.path}")


def _finished(trained: "Trained") -> Run:
    _, experiment, _ = trained.run.read_experiment()
    run = Run(
        trained.run.path,
        experiment,
        trained.record,
        num_changed_tensors=trained.num_changed_tensors,
        num_trained_tensors=trained.num_trained_tensors,
        base_unchanged=trained.base_unchanged,
    )
    if run.status not in ("finished", "interrupted"):
        raise RunFailed(run)
    return run


def forecast_of(asked: "Asked", observer: Observer) -> Plan | None:
    """The forecast for this machine, or for one of several devices, which the observer gets; None if there is none."""
    from foretune.training.forecast import plan_here

    plan = plan_here(asked, LiveSteps(observer), observer.message)
    if plan is not None:
        _tell_estimate(plan, observer)
        observer.planned(plan)
    return plan


def _tell_estimate(plan: Plan, observer: Observer) -> None:
    """The estimates in a line each, and a warning where they say that the run will not fit."""
    needs = f"{bytes_text(plan.process_bytes)} ({bytes_text(plan.process_low_bytes)} to "
    needs += f"{bytes_text(plan.process_high_bytes)}), most of it in the phase {plan.worst_phase!r}"
    who = "the process takes" if plan.world_size == 1 else f"each of the {plan.world_size} processes takes"
    observer.message(f"Estimated: {who} {needs}; there are {bytes_text(plan.usable_bytes)}: {plan.verdict}.")
    if plan.time is not None:
        observer.message(step_text(plan.time))
    elif plan.no_time is not None:
        observer.message(f"No planned speed, because this is not known: {plan.no_time}")
    if plan.verdict == "does not fit":
        fitting = [remedy.settings for remedy in plan.remedies if remedy.verdict == "fits"]
        advice = f" What would make it fit: {settings_text(fitting[0])}" if fitting else ""
        observer.warning(f"By the estimate this run does not fit.{advice}")
