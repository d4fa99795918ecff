"""`foretune study`: a classical question about training speed, or a study file's, answered by one command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from foretune.api.study import NAMED_STUDIES, is_study_file
from foretune.core.errors import UserError
from foretune.reports.terminal.named_study import print_result
from foretune.reports.terminal.study import print_markdown, print_summary

Form = Literal["table", "markdown", "json"]


def study(
    name: Annotated[
        str,
        typer.Argument(help=f"A study file; the folder of a study, to sum it up again; or {', '.join(NAMED_STUDIES)}."),
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
    if is_study_file(name):
        _refuse_for_files(model=model, quick=quick)
        _run_file(Path(name), only or [], studies, has_plot=plot, form=_form(as_json=as_json, as_markdown=as_markdown))
        return
    if only:
        raise UserError("--only goes with a study file: foretune study hardware.yaml --only CONFIGURATION")
    from foretune.api.study import study as run_study
    from foretune.cli.progress import ProgressObserver

    with ProgressObserver() as observer:
        found = run_study(name, model=model, quick=quick, studies=studies, plot=plot, observer=observer)
    if as_json:
        typer.echo(found.json, nl=False)
    else:
        print_result(found.result, found.path, has_plot=plot)


def _form(*, as_json: bool, as_markdown: bool) -> Form:
    return "json" if as_json else "markdown" if as_markdown else "table"


def _run_file(path: Path, only: list[str], studies: Path, *, has_plot: bool, form: Form) -> None:
    from foretune.api.study import study_file
    from foretune.cli.progress import ProgressObserver

    with _ended_by_schedulers(), ProgressObserver() as observer:
        found = study_file(path, only=only, studies=studies, plot=has_plot, observer=observer)
    if form == "json":
        typer.echo(found.json, nl=False)
    elif form == "markdown":
        print_markdown(found.summary)
    else:
        print_summary(found.summary)
        typer.echo(f"Numbers: {found.path / 'study.json'}")
        if has_plot:
            typer.echo(f"Plot: {found.path / 'plot.png'}")
    if found.problems:
        raise typer.Exit(1)


@contextmanager
def _ended_by_schedulers() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does, so that the process of the part under way is not left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse_for_files(*, model: Path | None, quick: bool) -> None:
    if model is not None or quick:
        option = "--model" if model is not None else "--quick"
        raise UserError(f"{option} goes with the studies that have a name; a study file says all of it itself.")
