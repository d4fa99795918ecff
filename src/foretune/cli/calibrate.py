"""`foretune calibrate`: how fast this machine's device is, measured once and used by plans."""

import json
import re
from typing import Annotated

import typer

from foretune.cli.options import refuse_given
from foretune.core.errors import UserError

_ONE_AT_A_TIME = {
    "show": "does not go with --forget: the one prints what the other removes. Leave out one of the two.",
}
_WITHOUT_MEASURING = dict.fromkeys(
    ("on", "threads", "budget"), "is for measuring, which --show and --forget do not do. Leave it out"
)


def calibrate(
    context: typer.Context,
    on: Annotated[str, typer.Option("--on", help="Device: auto, cuda, mps or cpu.")] = "auto",
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Threads of the CPU, as parallel.threads.", show_default=False),
    ] = None,
    budget: Annotated[str, typer.Option("--budget", help="How long to measure: 45s, 2min.")] = "45s",
    show: Annotated[bool, typer.Option("--show", help="Print what is stored, and measure nothing.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove what is stored, and measure nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON instead of a table.")] = False,
) -> None:
    """Measure how fast this machine's device is, for plans. Example: foretune calibrate --on cpu --threads 2"""
    if show and forget:
        refuse_given(context, _ONE_AT_A_TIME)
    if show or forget:
        refuse_given(context, _WITHOUT_MEASURING)
    if forget:
        _forget()
    elif show:
        _show(as_json=as_json)
    else:
        _measure(on, threads, _seconds(budget), as_json=as_json)


def _measure(on: str, threads: int | None, budget_s: float, *, as_json: bool) -> None:
    from foretune.api.calibrate import calibrate as measure
    from foretune.cli.progress import ProgressObserver
    from foretune.reports.terminal.calibrate import print_profile

    with ProgressObserver() as observer:
        found = measure(on=on, threads=threads, budget_s=budget_s, observer=observer)
    if as_json:
        typer.echo(json.dumps(found.profile.to_mapping()))
    else:
        print_profile(found.profile, found.path)
        typer.echo("Next: foretune plan MODEL --on here")


def _show(*, as_json: bool) -> None:
    from foretune.api.calibrate import calibrated
    from foretune.reports.terminal.calibrate import print_profile

    found = calibrated()
    for stored in found:
        if stored.profile is None:
            typer.secho(f"Warning: {stored.path} is not used: {stored.problem}", fg="yellow", err=True)
    readable = [(stored.profile, stored.path) for stored in found if stored.profile is not None]
    if as_json:
        typer.echo(json.dumps([profile.to_mapping() for profile, _ in readable]))
        return
    for profile, path in readable:
        print_profile(profile, path)
        typer.echo("")
    if not found:
        typer.echo("Nothing is stored. Run: foretune calibrate")


def _forget() -> None:
    from foretune.api.calibrate import forget_calibration

    removed = forget_calibration()
    for path in removed:
        typer.echo(f"Removed {path}")
    if not removed:
        typer.echo("Nothing is stored.")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min)?\s*", text)
    if match is None:
        raise UserError(f"--budget: {text!r} is not a time. Run: foretune calibrate --budget 45s")
    return float(match.group(1)) * (60 if match.group(2) == "min" else 1)
