"""`foretune doctor`: what works on this machine."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretune.cli.status import StatusObserver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from foretune.api.doctor import Finding

# A row in a file or a pipe is one line, however long.
_WIDTH_OF_A_PIPE = 400
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
        _show(found.findings, found.environment)
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


def _show(findings: "Sequence[Finding]", environment: "Mapping[str, Any]") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from foretune.core.units import duration_text

    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = _WIDTH_OF_A_PIPE
    for group in dict.fromkeys(finding.group for finding in findings):
        table = Table("device", group, "verdict", "time", "detail", box=None, pad_edge=False)
        for f in (finding for finding in findings if finding.group == group):
            verdict = "[green]works[/]" if f.works else "[red]fails[/]" if f.needed else "[yellow]not available[/]"
            table.add_row(f.device, f.operation, verdict, duration_text(f.seconds), escape(f.detail))
        out.print(table)
        out.print()
    for remedy in dict.fromkeys(f.remedy for f in findings if f.remedy):
        out.print(f"To install or fix: {escape(remedy)}")
    packages = ", ".join(f"{name} {v}" for name, v in environment["packages"].items() if v)
    out.print(f"python {environment['python']}, {packages}", style="dim")
