"""`foretune fetch`: a model is downloaded before the hardware is rented."""

from typing import Annotated

import typer


def fetch(
    target: Annotated[str, typer.Argument(help="A model, or an experiment file.", metavar="MODEL|EXPERIMENT")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes: key=value ...", show_default=False, metavar="[KEY=VALUE]...")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report size, licence and free space from the catalogue; no network.")
    ] = False,
) -> None:
    """Download what training a model needs, and verify every file. Example: foretune fetch flux.1-dev --dry-run"""
    from foretune.api.fetch import fetch as fetch_model
    from foretune.cli.progress import ProgressObserver

    try:
        with ProgressObserver() as observer:
            fetched = fetch_model(target, overrides, dry_run=dry_run, observer=observer)
    except KeyboardInterrupt as interrupt:
        typer.secho("Interrupted. Run the command again to continue.", err=True)
        raise typer.Exit(130) from interrupt
    typer.echo(str(fetched))
