"""`train` and `resume`: an experiment becomes a verified run."""

from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.live_steps import LiveSteps
from foretune.api.process_state import torch_kept
from foretune.api.run import Run, RunFailed, RunLike, path_of
from foretune.api.start import Changes, ExperimentLike, import_libraries, read_to_start
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.units import bytes_text
from foretune.core.values import Plan

if TYPE_CHECKING:
    from foretune.training.train import Trained


def train(
    experiment: ExperimentLike,
    changes: Changes | None = None,
    *,
    runs: str | Path = "runs",
    stop_on_signals: bool = False,
    observer: Observer | None = None,
) -> Run:
    """Trains what an experiment asks for, in this process, and returns the finished run.

    Args:
        experiment: an experiment file, or its content as a mapping.
        changes: settings for this run by dotted key, `{"train.steps": 100}`.
        runs: where run directories are made.
        stop_on_signals: finish the step, save and return when SIGINT, SIGTERM, SIGUSR1 or SIGUSR2 arrives, as the
            command line does. Otherwise signals are left alone, and Ctrl-C raises `KeyboardInterrupt`.
        observer: receives the forecast, steps, validations and checkpoints.

    Raises:
        RunFailed: the run crashed or ran out of memory; `error.run` is what it left.
        UserError: it cannot be started; the text says what to change.
    """
    from foretune.config.readiness import TO_TRAIN

    observer = observer or Observer()
    asked = read_to_start(experiment, changes, "Training", TO_TRAIN, Path(runs))
    import_libraries(observer, "foretune.training.forecast", "foretune.training.train", warns_if_busy=True)
    from foretune.training.forecast import plan_here
    from foretune.training.train import train as run_training

    plan = plan_here(asked, LiveSteps(observer), observer.message)
    if plan is not None:
        _tell_expected(plan, observer)
        observer.planned(plan)
    with torch_kept():
        return _finished(run_training(asked, Path(runs), observer, plan, handles_signals=stop_on_signals))


def resume(run: RunLike, *, stop_on_signals: bool = False, observer: Observer | None = None) -> Run:
    """Continues an interrupted run, bit for bit as if it had never stopped. Arguments as for `train`."""
    from foretune.record.run_directory import RunDirectory

    observer = observer or Observer()
    directory = RunDirectory.open(path_of(run))
    require("train", "Training")
    import_libraries(observer, "foretune.training.train", warns_if_busy=True)
    from foretune.training.train import resume as go_on

    plan = directory.read_plan()
    if plan is not None:
        observer.planned(plan)
    with torch_kept():
        return _finished(go_on(directory, observer, handles_signals=stop_on_signals))


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


def _tell_expected(plan: Plan, observer: Observer) -> None:
    """The forecast in a line, and a warning where it says that the run will not fit."""
    needs = f"{bytes_text(plan.process_bytes)} ({bytes_text(plan.process_low_bytes)} to "
    needs += f"{bytes_text(plan.process_high_bytes)}), most of it in the phase {plan.worst_phase!r}"
    observer.message(f"Expected: the process takes {needs}; there are {bytes_text(plan.usable_bytes)}: {plan.verdict}.")
    if plan.verdict == "does not fit":
        settings = [" ".join(f"{key}={value}" for key, value in remedy.settings.items()) for remedy in plan.remedies]
        advice = f" What would make it fit: {settings[0]}" if settings else ""
        observer.warning(f"By the forecast this run does not fit.{advice}")
