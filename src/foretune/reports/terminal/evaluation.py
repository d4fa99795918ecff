"""An evaluation in a table and a few sentences."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.core.units import counted_text, duration_text, rate_text, share_text
from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from foretune.core.values import Evaluation, Score

_SMALLEST_SHOWN = 1e-12


def print_evaluation(evaluation: "Evaluation", folder: Path) -> None:
    """The scores of both columns, what differs, what is absent and why."""
    from foretune.analyse.evaluations import quality_finding

    settings = evaluation.settings
    prompts, num_seeds = settings["prompts"], len(settings["seeds"])
    base = "" if evaluation.base is None else f"; base: {evaluation.base}"
    typer.echo(f"run: {evaluation.subject}{base}")
    # A model that takes no text has been asked for samples alone.
    asked = counted_text(len(prompts), "prompts" if any(prompts) else "groups of samples")
    typer.echo(
        f"{asked} x {counted_text(num_seeds, 'seeds')}, {counted_text(settings['steps'], 'steps')}, "
        f"{settings['size_px']} px; {counted_text(settings['held_out_images'], 'held-out images')}"
    )
    typer.echo()
    _print_scores(evaluation)
    _print_bands(evaluation)
    _print_absent(evaluation)
    typer.echo()
    finding = quality_finding(evaluation)
    typer.echo(finding.sentence)
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
    has_base = evaluation.base is not None
    confidence = evaluation.differences[0].confidence if evaluation.differences else 0.95
    headings = ("metric", *(("base",) if has_base else ()), "run", "its 95 % interval")
    if has_base:
        headings = (*headings, "difference", f"{share_text(confidence)} interval", "answer")
    made = table(*headings, "repeats")
    right(made, *range(1, 5 if has_base else 3))
    for score in evaluation.scores:
        if score.column == "run" and score.why_absent is None:
            made.add_row(*_row(evaluation, score, has_base=has_base))
    speeds = [evaluation.base_images_per_s] if has_base else []
    cells = ["-" if speed is None else rate_text(speed, "image") for speed in (*speeds, evaluation.images_per_s)]
    made.add_row("speed", *cells, *[""] * (len(headings) - 1 - len(cells)), "measured once")
    console().print(made)


def _row(evaluation: "Evaluation", score: "Score", *, has_base: bool) -> tuple[str, ...]:
    base = evaluation.score(score.metric, "base")
    digits = _digits(score.low, score.high)
    unit = f" {score.unit}" if score.unit else ""
    arrow = {True: " (higher is better)", False: " (lower is better)", None: ""}[score.higher_is_better]
    cells = [score.metric + arrow]
    if has_base:
        cells.append("-" if base is None or base.value is None else f"{base.value:.{digits}f}{unit}")
    cells += [
        "-" if score.value is None else f"{score.value:.{digits}f}{unit}",
        _interval(score.low, score.high, digits),
    ]
    if has_base:
        difference = evaluation.difference(score.metric)
        if difference is None or difference.difference is None:
            cells += ["", "", ""]
        else:
            digits = _digits(difference.low, difference.high)
            cells += [
                f"{difference.difference:+.{digits}f}",
                _interval(difference.low, difference.high, digits),
                difference.answer,
            ]
    return (*cells, counted_text(score.num_values, score.repeats_over) if score.num_values else score.repeats_over)


def _interval(low: float | None, high: float | None, digits: int) -> str:
    return "" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"


def _digits(low: float | None, high: float | None) -> int:
    """As many as the interval leaves meaning: its half width to two significant digits."""
    if low is None or high is None:
        return 3
    reach = (high - low) / 2
    if reach < _SMALLEST_SHOWN:
        return 3
    return min(max(1 - math.floor(math.log10(reach)), 0), 6)


def _print_bands(evaluation: "Evaluation") -> None:
    """Scores in parts: the base's and the run's."""
    for score in evaluation.scores:
        if score.column != "run" or not score.bands:
            continue
        base = evaluation.score(score.metric, "base")
        before = {} if base is None or base.bands is None else base.bands
        parts = [
            f"{name}: {before[name]:.3g} -> {value:.3g}"
            if name in before and before[name] != value
            else f"{name}: {value:.3g}"
            for name, value in score.bands.items()
        ]
        typer.echo(f"  {score.metric}: {'; '.join(parts)}")


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
