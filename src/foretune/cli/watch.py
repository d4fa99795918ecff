"""`foretune watch`: what runs now, what it costs, how long it takes, from the files alone."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from foretune.api.watch import WatchedFolder

_LINE_EVERY_S = 60.0


def watch(
    folder: Annotated[Path, typer.Argument(help="A folder of runs, a study, or a sweep.")],
    once: Annotated[bool, typer.Option("--once", help="Print what is there now, and end.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="A page that loads itself again, written at each look.")
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.5, help="Seconds between two looks.")] = 2.0,
    price: Annotated[
        float | None, typer.Option("--price", min=0, help="US dollars for an hour of one device; else the catalogue's.")
    ] = None,
) -> None:
    """Watch. Examples: foretune watch runs

    foretune watch runs --once

    foretune watch sweeps/batch/sweep_000 --html watch.html --price 1.20

    Ends when nothing runs or waits any more, or with Ctrl-C; the runs go on. In a file or a pipe it prints a line
    whenever a run starts or ends, and every minute.
    """
    from rich.console import Console

    from foretune.api.watch import watch as looks
    from foretune.cli.progress import ProgressObserver

    with ProgressObserver() as observer:
        states = looks(folder, every_s=every, html=html, price=price, observer=observer)
        first = next(states)
    if html is not None:
        typer.echo(f"Written: {html}; it loads itself again every {every:g} s", err=True)
    if once:
        typer.echo(str(first))
        return
    try:
        (_live if Console().is_terminal else _lines)(first, states)
    except KeyboardInterrupt:
        typer.echo("Stopped watching; the runs go on.", err=True)


def _live(state: "WatchedFolder", states: "Iterator[WatchedFolder]") -> None:
    """Drawn in place; what is there in the end stays."""
    from rich.live import Live
    from rich.text import Text

    def drawn(state: "WatchedFolder") -> Text:
        return Text(str(state), no_wrap=True, overflow="ellipsis")

    with Live(drawn(state), auto_refresh=False, vertical_overflow="ellipsis") as live:
        live.refresh()
        for later in states:
            live.update(drawn(later), refresh=True)


def _lines(state: "WatchedFolder", states: "Iterator[WatchedFolder]") -> None:
    """All of it first and last, and in between a line when something changed or a minute passed."""
    typer.echo(str(state))
    last_s, last = time.monotonic(), _situation(state)
    for later in states:
        situation, now_s = _situation(later), time.monotonic()
        if later.is_over:
            typer.echo(f"\n{later}")
        elif situation != last or now_s - last_s >= _LINE_EVERY_S:
            typer.echo(later.line)
            last_s, last = now_s, situation


def _situation(state: "WatchedFolder") -> object:
    """What is worth a line when it changes."""
    found = state.found
    return [run.path for run in found.running], found.preparing, found.waiting, dict(found.num_by_status)
