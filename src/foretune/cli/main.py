"""`foretune`: the list of verbs, and how errors reach a person."""

import os
import sys
from typing import Annotated

import typer

from foretune.cli import (
    doctor,
    export,
    init,
    listing,
    resume,
    sample,
    schema,
    tiny,
    train,
)
from foretune.core.errors import UserError

app = typer.Typer(
    name="foretune",
    help="Know before you fine-tune: plan, run and measure the fine-tuning of diffusion models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        from foretune import __version__

        typer.echo(f"foretune {__version__}")
        raise typer.Exit


app.command("init")(init.init)
app.command("train")(train.train)
app.command("resume")(resume.resume)
app.command("sample")(sample.sample)
app.command("export")(export.export)
app.add_typer(listing.app, name="list")
app.command("schema")(schema.schema)
app.command("doctor")(doctor.doctor)
app.command("tiny")(tiny.tiny)


def main() -> None:
    """The entry point: what the user can mend is said in a sentence, with exit code 2."""
    # Progress bars of the libraries underneath would tear ours apart.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except UserError as error:
        typer.secho(f"Error: {error}", fg="red", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
