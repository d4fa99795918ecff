"""`foretune study`: one question, asked of several configurations by one command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretune.api.study import STUDY_NAMES, study_path
from foretune.api.study_series import is_series
from foretune.cli.executor_options import Executor, ExecutorOptions, Jobs
from foretune.core.errors import UserError
from foretune.core.vocabulary import SeriesSize
from foretune.reports.terminal.study import print_markdown, print_summary

if TYPE_CHECKING:
    from foretune.api.study import StudyOutcome


def study(
    target: Annotated[
        str,
        typer.Argument(
            help=f"A study file; the folder of a study, to summarise it again; or {', '.join(STUDY_NAMES)}."
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Run this configuration only; its folder can be copied to other machines."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Study this model instead of the file's.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the study's folder; a new one measures everything again.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer configurations, steps and seeds: to try it, not to quote it.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="The models and data of the original study, on the hardware that it names.")
    ] = False,
    executor: Executor = "local",
    jobs: Jobs = None,
    option: ExecutorOptions = None,
    plot: Annotated[bool, typer.Option(help="Draw plot.svg and plot.png beside the numbers.")] = True,
    show: Annotated[bool, typer.Option("--show", help="Print the study file and exit, to copy and change it.")] = False,
    studies: Annotated[Path, typer.Option("--studies", help="Where results are stored.")] = Path("studies"),
    as_json: Annotated[bool, typer.Option("--json", help="Print study.json instead of the table.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table and findings as Markdown.")] = False,
) -> None:
    """Compare configurations, and draw it. Example: foretune study batch-size, foretune study hardware.yaml"""
    path = study_path(target)
    if show:
        _show(path)
        return
    shared: dict[str, Any] = {"model": model, "name": name, "executor": executor, "jobs": jobs, "options": option or ()}
    shared["studies"] = studies
    if quick and full:
        raise UserError("--quick and --full exclude each other. Leave out one of the two.")
    if is_series(path):
        refused = {"--only": bool(only), "--no-plot": not plot, "--json": as_json, "--markdown": as_markdown}
        _series(path, "full" if full else "quick" if quick else "small", refused, **shared)
        return
    if full:
        raise UserError("--full goes with a series of studies: foretune study cifar10-ddpm --full")
    found = _single(target, only=only or (), quick=quick, plot=plot, **shared)
    if as_json:
        typer.echo(found.json, nl=False)
    elif as_markdown:
        print_markdown(found.summary)
    else:
        print_summary(found.summary)
        typer.echo(f"Numbers: {found.path / 'study.json'}")
        if plot:
            typer.echo(f"Plot: {found.path / 'plot.png'}")
    if found.problems:
        raise typer.Exit(1)


def _single(target: str, **choices: Any) -> "StudyOutcome":
    from foretune.api.study import study as run_study
    from foretune.cli.progress import ProgressObserver

    with _ended_by_schedulers(), ProgressObserver() as observer:
        return run_study(target, observer=observer, **choices)


def _series(path: Path, size: SeriesSize, refused: dict[str, bool], **choices: Any) -> None:
    for option, is_given in refused.items():
        if is_given:
            raise UserError(f"{option} goes with a single study. {path.name} is a series of studies.")
    from foretune.api.study_series import study_series
    from foretune.cli.progress import ProgressObserver

    with _ended_by_schedulers(), ProgressObserver() as observer:
        found = study_series(path, size=size, observer=observer, **choices)
    typer.echo("")
    typer.secho(found.answer.question, bold=True)
    for sentence in found.answer.conclusion:
        typer.echo(f"  {sentence}")
    for part in found.answer.parts:
        typer.echo("")
        typer.secho(part.title, bold=True)
        for sentence in part.sentences:
            typer.echo(f"  {sentence}")
        for warning in part.warnings:
            typer.secho(f"  Warning: {warning}", fg="yellow")
    typer.echo(f"\nPage: {found.page}")
    typer.echo(f"Figures: {found.figures}")
    if found.problems:
        raise typer.Exit(1)


def _show(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder. --show prints a study file.")
    typer.echo(path.read_text(encoding="utf-8"), nl=False)


@contextmanager
def _ended_by_schedulers() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does, so that the process of the part under way is not left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
