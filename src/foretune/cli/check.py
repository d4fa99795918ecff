"""`foretune check`: are the files of a run whole and true to each other?"""

import json
from pathlib import Path
from typing import Annotated

import typer

_MOST_FAULTS = 20


def check(
    run: Annotated[Path, typer.Argument(help="The run directory, such as runs/<experiment>/latest.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Check that log, record, experiment and environment of a run agree; exit code 1 if they do not."""
    from foretune.api.experiment import check as check_run

    found = check_run(run)
    if as_json:
        answer = {"run": str(run), "valid": found.is_valid, "faults": found.faults, "notes": found.notes}
        counts = {"num_events": found.num_events, "num_steps": found.num_steps, "num_sessions": found.num_sessions}
        typer.echo(json.dumps({**answer, **counts}, indent=2))
    else:
        for fault in found.faults[:_MOST_FAULTS]:
            typer.secho(f"  {fault}", fg="red")
        if len(found.faults) > _MOST_FAULTS:
            typer.echo(f"  and {len(found.faults) - _MOST_FAULTS} more (--json prints all)")
        for note in found.notes:
            typer.echo(note)
        starts = "1 start" if found.num_sessions == 1 else f"{found.num_sessions} starts"
        counted = f"{found.num_events} events, {found.num_steps} steps, {starts}"
        verdict = "valid" if found.is_valid else f"not valid, {len(found.faults)} faults"
        typer.secho(f"{run}: {verdict} ({counted})", fg="green" if found.is_valid else "red")
    if not found.is_valid:
        raise typer.Exit(1)
