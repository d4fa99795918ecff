"""`foretune train`: an experiment file becomes a verified run."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.extras import require
from foretune.cli.quiet import quieten


def train(
    experiment: Annotated[Path, typer.Argument(help="The experiment file; `foretune init` writes one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes for this run: key=value ...", show_default=False)
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where run directories are made.")] = Path("runs"),
) -> None:
    """Train. Example: foretune train experiment.yaml train.steps=100 method.rank=32"""
    from foretune.config import read_experiment

    asked = read_experiment(experiment, overrides or ())
    require("train", "Training")
    quieten()
    from foretune.cli.progress import ProgressObserver
    from foretune.cli.summary import finish
    from foretune.run.train import train as run_training

    with ProgressObserver() as observer:
        trained = run_training(asked, runs, observer)
    finish(trained)
