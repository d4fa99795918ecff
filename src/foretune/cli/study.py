"""`foretune study`: a classical question about training speed, or a study file's, answered by one command."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.cli.extras import require
from foretune.cli.quiet import quieten
from foretune.core.errors import UnknownName, UserError

if TYPE_CHECKING:
    from foretune.run.studies.base import Study, StudyResult, Value

NAMED = ("operators", "batch-size", "workers", "precision", "compile", "methods")
"""Studies that need no file. Here, because to ask for help should not import torch."""


def study(
    name: Annotated[
        str,
        typer.Argument(help=f"A study file; the folder of a study, to sum it up again; or {', '.join(NAMED)}."),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Run this configuration of the file alone; its folder can be copied to others."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="A pipeline's folder. [default: a small one, made for it]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer points and repeats: to try it, not to quote it.")
    ] = False,
    plot: Annotated[bool, typer.Option(help="Draw plot.svg and plot.png beside the numbers.")] = True,
    studies: Annotated[Path, typer.Option("--studies", help="Where results are kept.")] = Path("studies"),
    as_json: Annotated[bool, typer.Option("--json", help="Print study.json instead of the table.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Of a study file: print it as Markdown.")] = False,
) -> None:
    """Measure one thing several ways, and draw it. Example: foretune study batch-size, foretune study hardware.yaml"""
    if plot:
        needed = "plots" if Path(name).is_dir() else "train,plots"
        require(needed, "A study with plots (leave them out with --no-plot)")
    if name not in NAMED and (Path(name).is_dir() or Path(name).suffix in (".yaml", ".yml")):
        from foretune.cli.study_files import Form, study_file

        _refuse_for_files(model=model, quick=quick)
        form: Form = "json" if as_json else "markdown" if as_markdown else "table"
        study_file(Path(name), tuple(only or ()), studies, has_plot=plot, form=form)
        return
    if only:
        raise UserError("--only goes with a study file: foretune study hardware.yaml --only CONFIGURATION")
    if name not in NAMED:
        raise UnknownName("study or study file", name, NAMED)
    require("train", "A study")
    begin_s = time.perf_counter()
    quieten()
    from foretune.cli.progress import ProgressObserver
    from foretune.run.studies import STUDIES
    from foretune.run.studying import run_study

    chosen = STUDIES[name]
    # A fresh process takes about as long to start as this one took.
    _say_expected(chosen, time.perf_counter() - begin_s, is_quick=quick, has_model=model is not None)
    with ProgressObserver() as observer:
        path, result = run_study(chosen, studies, model=model, is_quick=quick, observer=observer)
    if plot:
        from foretune.reports.study_plots import write_study_plots

        write_study_plots(result.to_mapping(), path)
    if as_json:
        typer.echo((path / "study.json").read_text(encoding="utf-8"), nl=False)
    else:
        _print(result, path, has_plot=plot)


def _refuse_for_files(*, model: Path | None, quick: bool) -> None:
    if model is not None or quick:
        option = "--model" if model is not None else "--quick"
        raise UserError(f"{option} goes with the studies that have a name; a study file says all of it itself.")


def _say_expected(study: "Study", start_s: float, *, is_quick: bool, has_model: bool) -> None:
    from foretune.core.units import duration_text

    num = study.num_processes(is_quick)
    expected_s = num * (start_s + 1) + (study.extra_s(is_quick) if not has_model else 0)
    processes = "1 fresh process" if num == 1 else f"{num} fresh processes"
    own = ", and the steps of your model" if has_model else ""
    typer.echo(f"{study.title}: {processes}, about {duration_text(expected_s)}{own}.", err=True)


def _print(result: "StudyResult", path: Path, *, has_plot: bool) -> None:
    from foretune.cli.tables import console, right, table

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


def _cell(value: "Value") -> str:
    if value.value is None:
        return "not steady"
    text = _number(value.value)
    if value.low is not None:
        text += f" ({_number(value.low)} {'or more' if value.high is None else f'to {_number(value.high)}'})"
    return text


def _number(value: float) -> str:
    """Three digits, and no exponent where a person would write none."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004
