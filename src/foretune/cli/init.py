"""`foretune init`: an experiment file to start from."""

from pathlib import Path
from typing import Annotated

import typer


def init(
    file: Annotated[Path, typer.Argument(help="Where to write the experiment.")] = Path("experiment.yaml"),
    model: Annotated[
        str, typer.Option("--model", "-m", help="A model of the catalogue, Hub id or local folder.")
    ] = "flux.1-dev",
    method: Annotated[
        str, typer.Option("--method", help="full, or an adapter: lora, dora, rslora, loha, lokr, oft.")
    ] = "lora",
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="Folder with images and captions; without it, `shapes`."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write an experiment file to start from."""
    from foretune.api.experiment import init as write_experiment

    started = write_experiment(file, model=model, method=method, data=data, force=force)
    if started.note is not None:
        typer.echo(f"Note: {started.note}", err=True)
    for warning in started.warnings:
        typer.secho(f"Warning: {warning}", fg="yellow", err=True)
    typer.echo(f"Wrote {file}. Next: foretune train {file}")
