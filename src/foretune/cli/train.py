"""`foretune train`: an experiment file becomes a verified run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.cli.quiet import quieten
from foretune.cli.starting import read_to_start
from foretune.core.units import bytes_text

if TYPE_CHECKING:
    from foretune.core.values import Plan
    from foretune.run.observer import Observer


def train(
    experiment: Annotated[Path, typer.Argument(help="The experiment file; `foretune init` writes one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes for this run: key=value ...", show_default=False)
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where run directories are made.")] = Path("runs"),
) -> None:
    """Train. Example: foretune train experiment.yaml train.steps=100 method.rank=32"""
    from foretune.config.readiness import TO_TRAIN

    asked = read_to_start(experiment, overrides or (), "Training", TO_TRAIN, runs)
    from foretune.run.busyness import BusyWatch

    watch = BusyWatch()
    quieten()
    from foretune.cli.plan import Recording
    from foretune.cli.progress import ProgressObserver
    from foretune.cli.summary import ended_by_ctrl_c, finish
    from foretune.run.forecast import plan_here
    from foretune.run.train import train as run_training

    with ended_by_ctrl_c(), ProgressObserver() as observer:
        watch.warn(observer)
        plan = plan_here(asked, Recording(lambda _: None), observer.message)
        if plan is not None:
            say_expected(plan, observer)
            observer.expect(plan)
        trained = run_training(asked, runs, observer, plan)
    finish(trained)


def say_expected(plan: "Plan", observer: "Observer") -> None:
    """The forecast in a line, and a warning where it says that the run will not fit."""
    needs = f"{bytes_text(plan.process_bytes)} ({bytes_text(plan.process_low_bytes)} to "
    needs += f"{bytes_text(plan.process_high_bytes)}), most of it in the phase {plan.worst_phase!r}"
    observer.message(f"Expected: the process takes {needs}; there are {bytes_text(plan.usable_bytes)}: {plan.verdict}.")
    if plan.verdict == "does not fit":
        settings = [" ".join(f"{key}={value}" for key, value in remedy.settings.items()) for remedy in plan.remedies]
        advice = f" What would make it fit: {settings[0]}" if settings else ""
        observer.warning(f"By the forecast this run does not fit.{advice}")
