"""A study that has a name, as a table and sentences."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from foretune.studies.named.base import StudyResult, StudyValue


def print_result(result: "StudyResult", path: Path, *, has_plot: bool) -> None:
    """The table of a study that has a name, what it found, and where its numbers are."""
    typer.echo(result.title)
    typer.echo("")
    made = table(result.setting, *(axis.title for axis in result.axes), "n")
    right(made, *range(1, len(result.axes) + 2))
    for point in result.points:
        cells = [_cell(point.values[axis.key]) for axis in result.axes]
        runs = "1 run" if point.num_runs == 1 else f"{point.num_runs} runs"
        made.add_row(point.label, *cells, f"{runs}, {point.num_values} values")
    console().print(made)
    typer.echo("")
    for finding in result.findings:
        typer.echo(f"{finding[:1].upper()}{finding[1:]}.")
    num_dropped = sum(point.num_dropped for point in result.points)
    num_all = num_dropped + sum(point.num_values for point in result.points)
    if any(value.low is not None for point in result.points for value in point.values.values()):
        typer.echo(f"In brackets the 95 % interval; {num_dropped} of {num_all} values were left out as warm-up.")
    for warning in result.warnings:
        typer.secho(f"Warning: {warning}", fg="yellow")
    typer.echo(f"Numbers: {path / 'study.json'}")
    if has_plot:
        typer.echo(f"Plot: {path / 'plot.png'}")


def _cell(value: "StudyValue") -> str:
    if value.value is None:
        return "not steady"
    text = _number(value.value)
    if value.low is not None:
        text += f" ({_number(value.low)} {'or more' if value.high is None else f'to {_number(value.high)}'})"
    return text


def _number(value: float) -> str:
    """Three digits, and no exponent where a person would write none."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004
