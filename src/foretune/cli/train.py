"""`foretune train`: an experiment becomes a verified run."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.ending import finished_run, rehearsed
from foretune.cli.options import DataPlace


def train(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|EXPERIMENT", help="A model: catalogue name, Hub id or folder. Or an experiment file."
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes for this run: key=value ...", show_default=False)
    ] = None,
    data: DataPlace = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where run directories are made.")] = Path("runs"),
    is_rehearsed: Annotated[
        bool, typer.Option("--rehearse", help="First run every phase once: load, encode, step, validate, save, resume.")
    ] = False,
) -> None:
    """Train an experiment file; or a model by its name, with the settings that `foretune init` would write.

    Examples: foretune train flux.1-dev --data ./photos train.steps=500, foretune train experiment.yaml method.rank=32
    """
    from foretune.api.train import train as run_training

    if is_rehearsed:
        rehearsed(experiment, overrides, data, runs)
    finished_run(
        lambda observer: run_training(
            experiment, overrides, data=data, runs=runs, stop_on_signals=True, observer=observer
        )
    )
