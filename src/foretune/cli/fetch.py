"""`foretune fetch`: a model or data set is downloaded before the hardware is rented."""

import os
import sys
from typing import Annotated

import typer

from foretune.core.errors import UserError


def fetch(
    target: Annotated[
        str | None,
        typer.Argument(help="A model, a data set, or an experiment file.", metavar="[MODEL|DATASET|EXPERIMENT]"),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes: key=value ...", show_default=False, metavar="[KEY=VALUE]...")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report size, licence and free space from the catalogue; no network.")
    ] = False,
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="The five models and the data of the public AMD diffusion benchmark.")
    ] = False,
) -> None:
    """Download what training a model needs, and verify every file. Example: foretune fetch flux.1-dev --dry-run"""
    from foretune.api.fetch import DownloadTotal, fetch_benchmark
    from foretune.api.fetch import fetch as fetch_one
    from foretune.cli.progress import ProgressObserver

    if benchmark == (target is not None):
        raise UserError("Name a model, a data set or an experiment file, or give --benchmark alone.")
    if benchmark and not dry_run:
        _ask_for_token()
    try:
        with ProgressObserver() as observer:
            if benchmark:
                downloads = []
                for fetched in fetch_benchmark(dry_run=dry_run, observer=observer):
                    downloads.append(fetched)
                    typer.echo(f"{fetched}\n" if dry_run else str(fetched))
                if dry_run:
                    typer.echo(str(DownloadTotal(downloads)))
                return
            assert target is not None, "checked above"
            fetched = fetch_one(target, overrides, dry_run=dry_run, observer=observer)
    except KeyboardInterrupt as interrupt:
        typer.secho("Interrupted. Run the command again to continue.", err=True)
        raise typer.Exit(130) from interrupt
    typer.echo(str(fetched))


def _ask_for_token() -> None:
    """Asks a person for a token, for this command alone: some of the models are gated. Scripts are never asked."""
    from foretune.api.fetch import has_token

    if has_token() or not sys.stdin.isatty():
        return
    token = typer.prompt(
        "FLUX.1-dev is gated. Token of the Hugging Face Hub (hidden; Enter for none)",
        default="",
        hide_input=True,
        show_default=False,
        err=True,
    )
    if token:
        os.environ["HF_TOKEN"] = token.strip()
