"""`foretune doctor`: what works on this machine."""

import json
from typing import Annotated

import typer

from foretune.cli.status import StatusObserver
from foretune.reports.terminal.doctor import print_findings

_ALL_WELL = "Everything a training needs works here."


def doctor(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Examine one group, again for more: training, attention, ...", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run the operations a training needs on each device present, and say what works."""
    from foretune.api.doctor import doctor as examine

    with _Examining("Examining", is_quiet=as_json) as observer:
        found = examine(only or (), observer=observer)
    if as_json:
        typer.echo(json.dumps(found.to_mapping(), indent=2))
    else:
        print_findings(found.findings, found.environment)
    if not found.is_ready:
        names = ", ".join(f"{f.operation} on {f.device}" for f in found.failed)
        typer.secho(f"Needed for training and failing: {names}", fg="red", err=True)
        raise typer.Exit(1)
    if not as_json:
        typer.echo("Everything examined that a training needs works here." if only else _ALL_WELL)


class _Examining(StatusObserver):
    """Which accelerators there are comes first: the operations take a minute."""

    def __init__(self, title: str, *, is_quiet: bool) -> None:
        super().__init__(title)
        self._is_quiet = is_quiet

    def message(self, text: str) -> None:
        if not self._is_quiet:
            typer.echo(text)
            typer.echo("")
