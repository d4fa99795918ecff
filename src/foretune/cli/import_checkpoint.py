"""`foretune import-checkpoint`: a single-file checkpoint becomes a model folder that can be trained."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.core.input_files import shown_lines


def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="A .safetensors file, as ComfyUI and kohya's trainers use them.")],
    base: Annotated[
        str,
        typer.Option(
            "--base",
            help="The model that it was made from: name, Hub id or folder. What the file lacks is taken from it.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write to; if left out, the name of the file.")
    ] = None,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also copy files that links of the base's folder lead to elsewhere.")
    ] = False,
) -> None:
    """Turn a single-file checkpoint into a model folder that can be trained."""
    from foretune.api.import_checkpoint import import_checkpoint as convert
    from foretune.cli.status import StatusObserver

    with StatusObserver("Importing") as observer:
        imported = convert(file, base, output, follow_links=follow_links, observer=observer)
    typer.echo(shown_lines(str(imported)))
    typer.echo(f"Wrote {imported.path}. Use it as `model: {imported.path}`.")
