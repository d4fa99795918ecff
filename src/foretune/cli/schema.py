"""`foretune schema`: the JSON schema of an experiment file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.files import write_file


def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Tables for people instead of JSON.")] = False,
) -> None:
    """Print the JSON schema of experiment files, for editors that complete and check them.

    In VS Code: `# yaml-language-server: $schema=foretune.schema.json` as the first line of the file.
    """
    from foretune.config.reference import experiment_reference
    from foretune.config.schema import experiment_schema

    text = experiment_reference().rstrip() if markdown else json.dumps(experiment_schema(), indent=2)
    if output is None:
        typer.echo(text)
    else:
        write_file(output, text + "\n")
        typer.echo(f"Wrote {output}.")
