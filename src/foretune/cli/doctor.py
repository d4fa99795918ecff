"""`foretune doctor`: what works on this machine."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from foretune.cli.extras import require
from foretune.cli.quiet import hush

# A row in a file or a pipe is one line, however long.
_WIDTH_OF_A_PIPE = 400


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run the operations a training needs on each device present, and say what works."""
    require("train", "The doctor")
    # No more than that: importing the libraries is among the things examined.
    hush()
    from rich.console import Console
    from rich.table import Table

    from foretune.core.units import duration_text
    from foretune.record.environment import environment_fingerprint
    from foretune.run.doctor import examine

    console = Console(stderr=True, highlight=False)
    findings = []
    with console.status("Examining ...") as status:
        for finding in examine():
            findings.append(finding)
            status.update(f"Examined {finding.operation} on {finding.device}")
    environment = environment_fingerprint()
    failed = [finding for finding in findings if finding.needed and not finding.works]
    if as_json:
        typer.echo(json.dumps({"environment": environment, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        table = Table("device", "operation", "verdict", "time", "detail", box=None, pad_edge=False)
        for f in findings:
            verdict = "[green]works[/]" if f.works else "[red]fails[/]" if f.needed else "[yellow]not available[/]"
            table.add_row(f.device, f.operation, verdict, duration_text(f.seconds), f.detail)
        out = Console(highlight=False)
        if not out.is_terminal:
            out.width = _WIDTH_OF_A_PIPE
        out.print(table)
        packages = ", ".join(f"{name} {v}" for name, v in environment["packages"].items() if v)
        out.print(f"python {environment['python']}, {packages}", style="dim")
    if failed:
        names = ", ".join(f"{f.operation} on {f.device}" for f in failed)
        typer.secho(f"Needed for training and failing: {names}", fg="red", err=True)
        raise typer.Exit(1)
    if not as_json:
        typer.echo("Everything a training needs works here.")
