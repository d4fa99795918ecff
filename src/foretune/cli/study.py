"""`foretune study`: one question, asked of several configurations by one command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from foretune.api.study import STUDY_NAMES, study_path
from foretune.cli.executor_options import Executor, ExecutorOptions, Jobs
from foretune.core.errors import UserError
from foretune.reports.terminal.study import print_markdown, print_summary


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
    if show:
        _show(study_path(target))
        return
    from foretune.api.study import study as run_study
    from foretune.cli.progress import ProgressObserver

    with _ended_by_schedulers(), ProgressObserver() as observer:
        found = run_study(
            target,
            only=only or (),
            model=model,
            name=name,
            quick=quick,
            executor=executor,
            jobs=jobs,
            options=option or (),
            studies=studies,
            plot=plot,
            observer=observer,
        )
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
