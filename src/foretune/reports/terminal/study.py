"""The summary of a study as text: what was held equal, a table, and findings in words."""

from typing import TYPE_CHECKING

import typer

from foretune.core.units import measured_text
from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from foretune.analyse.study_cells import Number, StudyCell
    from foretune.analyse.study_summary import StudySummary
    from foretune.core.values import Finding

_TITLES = {
    "equal-time": "the same time for all: which quality?",
    "equal-steps": "the same steps for all: which speed?",
    "convergence": "when do more steps stop helping?",
    "speed": "how fast are the steps alone, and with how much memory?",
}


def print_summary(summary: "StudySummary") -> None:
    """The whole answer."""
    typer.echo(f"{summary.name}: {_TITLES[summary.protocol]}")
    typer.echo(summary.held_equal)
    typer.echo("")
    settings = list(dict.fromkeys(cell.setting for cell in summary.cells))
    made = table(*(["setting"] if len(settings) > 1 else []), "configuration", *_heads(summary), "seeds")
    num_names = 2 if len(settings) > 1 else 1
    right(made, *range(num_names, num_names + len(summary.axes) + 1))
    for cell in summary.cells:
        names = [cell.setting, cell.configuration] if len(settings) > 1 else [cell.configuration]
        made.add_row(*names, *(_cell(cell.numbers.get(axis.title)) for axis in summary.axes), _seeds(cell))
    console().print(made)
    if any(number.low is not None for cell in summary.cells for number in cell.numbers.values()):
        typer.echo("In brackets the 95 % interval of the mean over seeds.")
    typer.echo("")
    for finding in summary.findings:
        typer.echo(_in_full(finding))
    for warning in summary.warnings:
        typer.secho(f"Warning: {warning}", fg="yellow")


def print_markdown(summary: "StudySummary") -> None:
    """The same for a page: what was held equal, the table, the findings as a list."""
    typer.echo(f"{summary.held_equal}\n")
    heads = ["setting", "configuration", *_heads(summary), "seeds"]
    typer.echo(f"| {' | '.join(heads)} |")
    typer.echo(f"|---|---|{'---:|' * (len(heads) - 2)}")
    for cell in summary.cells:
        numbers = [_cell(cell.numbers.get(axis.title)) for axis in summary.axes]
        typer.echo(f"| {' | '.join([cell.setting, cell.configuration, *numbers, _seeds(cell)])} |")
    typer.echo("\nIn brackets the 95 % interval of the mean over seeds.\n")
    for finding in summary.findings:
        typer.echo(f"- {_in_full(finding)}")
    for warning in summary.warnings:
        typer.echo(f"- Warning: {warning}")


def _in_full(finding: "Finding") -> str:
    """With its caveat, and a capital letter unless it begins with the name of a configuration."""
    text = finding.sentence
    sentence = f"{text[:1].upper()}{text[1:]}" if text.startswith(("no ", "not ")) else text
    return f"{sentence} {finding.caveat}" if finding.caveat else sentence


def _heads(summary: "StudySummary") -> list[str]:
    arrows = {True: " (more is better)", False: " (less is better)", None: ""}
    return [f"{axis.title}{arrows[axis.higher_is_better]}" for axis in summary.axes]


def _cell(number: "Number | None") -> str:
    if number is None:
        return "not measured"
    if number.low is not None and number.low == number.high:
        return f"{number.value:g}"  # the same in all: there is nothing to be unsure of
    return measured_text(number.value, number.low, number.high, "")


def _seeds(cell: "StudyCell") -> str:
    return (
        str(len(cell.parts))
        if not cell.unfinished
        else f"{len(cell.parts)} of {len(cell.parts) + len(cell.unfinished)}"
    )
