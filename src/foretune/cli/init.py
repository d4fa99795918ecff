"""`foretune init`: an experiment file to start from."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.files import write_file


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
    from foretune.choices.method import METHODS
    from foretune.choices.model import resolve_model
    from foretune.config.reading import understand
    from foretune.config.starting import starting_text
    from foretune.config.yaml_files import parse
    from foretune.core.errors import Refused, UnknownName

    if file.exists() and not force:
        raise Refused(f"{file} exists already. Run: foretune init {file} --force, or choose another name")
    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    reference = resolve_model(model)
    if reference.note is not None:
        typer.echo(f"Note: {reference.note}", err=True)
    text = starting_text(str(file), reference.asked, method, data, family=reference.family)
    # Checked before it is written: a file that would be refused must not be left behind as if it were good.
    asked = understand(parse(text), source="This request")
    write_file(file, text)
    if data is not None and not Path(data).expanduser().is_dir():
        is_file = Path(data).expanduser().exists()
        typer.secho(
            f"Warning: {data} {'is a file, not a folder' if is_file else 'does not exist'} (looked for "
            f"{Path(data).expanduser().absolute()}). Put your images there before you train, or change data.path in "
            f"{file}.",
            fg="yellow",
            err=True,
        )
    for warning in asked.warnings:
        typer.secho(f"Warning: {warning}", fg="yellow", err=True)
    typer.echo(f"Wrote {file}. Next: foretune train {file}")
