"""`foretune schema`: the keys of an experiment file, for editors (JSON schema) and for people (Markdown)."""

import json
from pathlib import Path
from typing import Annotated

import typer

from foretune.core.errors import UserError
from foretune.core.output_files import write_file


def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Tables for people instead of JSON.")] = False,
    pages: Annotated[
        Path | None,
        typer.Option("--pages", metavar="FOLDER", help="Write the tables to a folder: one Markdown page per section."),
    ] = None,
) -> None:
    """Print the JSON schema of experiment files, for editors that complete and check them.

    In VS Code: `# yaml-language-server: $schema=foretune.schema.json` as the first line of the file.
    """
    from foretune.api.experiment import schema as experiment_schema
    from foretune.api.experiment import schema_markdown, schema_pages

    if pages is not None:
        if markdown or output is not None:
            raise UserError("--pages writes a folder of Markdown pages. Leave out --markdown and --output.")
        written = schema_pages()
        for name, page in written.items():
            write_file(pages / name, page)
        typer.echo(f"Wrote {len(written)} pages to {pages}.")
        return
    text = schema_markdown().rstrip() if markdown else json.dumps(experiment_schema(), indent=2)
    if output is None:
        typer.echo(text)
    else:
        write_file(output, text + "\n")
        typer.echo(f"Wrote {output}.")
