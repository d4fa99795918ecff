"""`foretune import`: another trainer's configuration as an experiment file."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.core.input_files import shown_lines


def import_config(
    file: Annotated[Path, typer.Argument(help="Its configuration, or a file with its command line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the experiment.")] = Path(
        "experiment.yaml"
    ),
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A model of the catalogue, instead of the file's.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Translate another trainer's configuration: SimpleTuner, ai-toolkit, sd-scripts, OneTrainer, diffusers scripts.

    Writes an experiment file. Its comments list what became of each key, and what was assumed.
    """
    from foretune.api.import_config import import_config as translate

    imported = translate(file, output, model=model, force=force)
    for text in imported.assumed:
        typer.echo(shown_lines(f"Assumed: {text}"), err=True)
    if imported.unsupported:
        listed = shown_lines(", ".join(imported.unsupported))
        typer.secho(f"Warning: no equivalent here: {listed}. The comments say what that means.", fg="yellow", err=True)
    typer.echo(f"Wrote {output}, from a configuration of {imported.program}. Next: foretune plan {output}")
