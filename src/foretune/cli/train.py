"""`foretune train`: an experiment file becomes a verified run."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.ending import finished_run, rehearsed


def train(
    experiment: Annotated[Path, typer.Argument(help="The experiment file; `foretune init` writes one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes for this run: key=value ...", show_default=False)
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where run directories are made.")] = Path("runs"),
    is_rehearsed: Annotated[
        bool, typer.Option("--rehearse", help="First run every phase once: load, encode, step, validate, save, resume.")
    ] = False,
) -> None:
    """Train. Example: foretune train experiment.yaml train.steps=100 method.rank=32"""
    from foretune.api.train import train as run_training

    if is_rehearsed:
        rehearsed(experiment, overrides, runs)
    finished_run(
        lambda observer: run_training(experiment, overrides, runs=runs, stop_on_signals=True, observer=observer)
    )
