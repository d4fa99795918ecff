"""`foretune import-accelerate`: a config of Hugging Face accelerate as sections of an experiment file."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.core.input_files import shown_lines


def import_accelerate(
    file: Annotated[Path, typer.Argument(help="The file that `accelerate config` writes: default_config.yaml.")],
) -> None:
    """Translate a config of Hugging Face accelerate. DeepSpeed configs become FSDP2.

    Prints YAML for an experiment file, with comments: what became of each key, and what differs.
    """
    from foretune.api.accelerate import import_accelerate as translate

    imported = translate(file)
    typer.echo(shown_lines(imported.yaml), nl=False)
    if imported.unsupported:
        listed = shown_lines(", ".join(imported.unsupported))
        typer.secho(f"Warning: no equivalent here: {listed}. The comments name the nearest.", fg="yellow", err=True)
