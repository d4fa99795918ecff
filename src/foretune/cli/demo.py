"""`foretune demo`: from a forecast to a report in three minutes, on a laptop's CPU."""

import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from foretune.core.units import duration_text


def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where everything is written.")] = Path("foretune-demo"),
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the report in a browser.")] = True,
) -> None:
    """Plan, fine-tune, evaluate, compare, report: on a laptop CPU in three minutes. Example: foretune demo"""
    begin_s = time.monotonic()
    from foretune.api.demo import demo as run_demo
    from foretune.cli.demo_progress import DemoProgress

    with DemoProgress() as observer:
        made = run_demo(folder, observer=observer)
    typer.echo(str(made.report))
    typer.echo(f"Written: {made.page}")
    typer.echo(f"The forecast as a page: {made.plan_page}")
    typer.echo(f"The study, to change and run again: foretune study {made.trained.file} --studies {folder}")
    typer.secho(f"\nDone in {duration_text(time.monotonic() - begin_s)}. Report: {made.page}", bold=True)
    if made.num_failed:
        failed = f"{made.num_failed} of {len(made.trained.done)}"
        typer.secho(f"{failed} trainings failed; the report says why.", fg="red", err=True)
        raise typer.Exit(1)
    if open_page and not webbrowser.open(made.page.resolve().as_uri()):
        typer.echo("No browser was found here: open the report by hand.")
