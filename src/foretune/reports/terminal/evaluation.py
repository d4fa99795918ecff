"""An evaluation in a table and a few sentences."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.core.units import duration_text
from foretune.reports.score_rows import band_lines, score_headings, score_rows, settings_text
from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from foretune.core.values import Evaluation


def print_evaluation(evaluation: "Evaluation", folder: Path, too_few_steps: str | None = None) -> None:
    """The scores of both columns, what differs, what is absent and why."""
    from foretune.analyse.evaluations import quality_finding

    base = "" if evaluation.base is None else f"; base: {evaluation.base}"
    typer.echo(f"run: {evaluation.subject}{base}")
    typer.echo(settings_text(evaluation))
    typer.echo()
    _print_scores(evaluation)
    for line in band_lines(evaluation):
        typer.echo(f"  {line}")
    _print_absent(evaluation)
    typer.echo()
    typer.echo(quality_finding(evaluation, too_few_steps).sentence)
    if evaluation.images_per_s is not None and evaluation.base_images_per_s is not None:
        typer.echo(
            "Speed was measured once, which says nothing about a difference: foretune bench MODEL --inference does."
        )
    for warning in evaluation.warnings:
        typer.echo(f"! {warning}")
    took = "" if evaluation.wall_s is None else f" ({duration_text(evaluation.wall_s)})"
    pictures = f", and {', '.join(evaluation.pictures)} beside it" if evaluation.pictures else ""
    typer.echo(f"Wrote {folder / 'evaluation.json'}{pictures}{took}.")


def _print_scores(evaluation: "Evaluation") -> None:
    made = table(*score_headings(evaluation))
    right(made, *range(1, 5 if evaluation.base is not None else 3))
    for row in score_rows(evaluation):
        made.add_row(*row)
    console().print(made)


def _print_absent(evaluation: "Evaluation") -> None:
    absent = {
        score.metric: score.why_absent
        for score in evaluation.scores
        if score.column == "run" and score.why_absent is not None
    }
    if absent:
        typer.echo()
        typer.echo("Absent:")
    for name, why in absent.items():
        typer.echo(f"  {name}: {why}.")
