"""`foretune schema`: the JSON schema of an experiment file."""

import json
from pathlib import Path
from typing import Annotated

import typer


def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead.")] = None,
) -> None:
    """Print the JSON schema of experiment files, for editors that complete and check them.

    In VS Code: `# yaml-language-server: $schema=foretune.schema.json` as the first line of the file.
    """
    from foretune.config.schema import experiment_schema

    text = json.dumps(experiment_schema(), indent=2)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")
        typer.echo(f"Wrote {output}.")
