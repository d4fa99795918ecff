"""`foretune data import`: folders to train on."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make folders of training data.", no_args_is_help=True)
_GIB = 2**30


@app.callback()
def _group() -> None:
    """Make folders of training data."""


@app.command("import")
def import_archive(
    archive: Annotated[Path, typer.Argument(help="A zip or tar (also .gz, .bz2, .xz, .zst).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make.")],
    max_gib: Annotated[
        float, typer.Option("--max-gib", min=0.001, help="Refuse an archive that unpacks to more than this, in GiB.")
    ] = 1024.0,
) -> None:
    """Take images and captions out of an archive. Example: foretune data import pictures.zip --output pictures"""
    from foretune.api.import_archive import import_archive as import_from
    from foretune.cli.progress import ProgressObserver

    try:
        with ProgressObserver() as observer:
            imported = import_from(archive, output, most_bytes=round(max_gib * _GIB), observer=observer)
    except KeyboardInterrupt as interrupt:
        typer.secho("Interrupted: nothing was imported.", err=True)
        raise typer.Exit(130) from interrupt
    typer.echo(str(imported))
