"""`foretune study FILE.yaml`: runs what is not there yet, then sums up what is."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import typer

from foretune.cli.extras import require
from foretune.cli.quiet import quieten
from foretune.core.units import duration_text

Form = Literal["table", "markdown", "json"]


def study_file(path: Path, only: tuple[str, ...], studies: Path, *, has_plot: bool, form: Form) -> None:
    """A file is run and summed up; a study's folder is only summed up, which needs no torch."""
    if path.is_dir():
        sum_up(path, None, has_plot=has_plot, form=form)
        return
    from foretune.config.study_files import read_study

    asked = read_study(path, only=only)
    require("train", "Running a study")
    from foretune.run.busyness import BusyWatch

    watch = BusyWatch()
    quieten()
    from foretune.cli.plan import Recording
    from foretune.cli.progress import ProgressObserver
    from foretune.run.forecast import plan_here
    from foretune.run.study_file import run_study_file

    num = len(asked.parts)
    seconds = asked.file.seconds
    least = "" if seconds is None else f", {duration_text(num * seconds)} of training in all"
    runs = "1 run in a fresh process" if num == 1 else f"{num} runs in fresh processes, in turns"
    typer.echo(f"{asked.name}: {asked.file.protocol}, {runs}{least}.", err=True)
    with _ended_by_schedulers(), ProgressObserver() as observer:
        watch.warn(observer)
        for warning in asked.warnings:
            observer.warning(warning)
        done = run_study_file(asked, studies, observer, lambda one: plan_here(one, Recording(lambda _: None), _quiet))
    num_reused = sum(part.is_reused for part in done)
    if num_reused:
        typer.echo(f"{num_reused} of {num} runs were there already.", err=True)
    sum_up(studies / asked.name, asked.file.least_gain, has_plot=has_plot, form=form)
    if any(part.problem is not None for part in done):
        raise typer.Exit(1)


@contextmanager
def _ended_by_schedulers() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does, so that the process of the part under way is not left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _quiet(_: str) -> None:
    """Why a run has no forecast is told by `foretune train`; among many runs it would drown the rest."""


def sum_up(directory: Path, least_gain: float | None, *, has_plot: bool, form: Form) -> None:
    """Writes study.json and the plot beside the runs, and prints what they say."""
    from foretune.analyse.studying import STUDY_FILE, summarise_study
    from foretune.record.atomic import write_text
    from foretune.stats.settling import LEAST_GAIN

    summary = summarise_study(directory, least_gain=least_gain or LEAST_GAIN)
    text = json.dumps(summary.to_mapping(), indent=2, allow_nan=False) + "\n"
    write_text(directory / STUDY_FILE, text)
    if has_plot:
        from foretune.reports.protocol_plots import write_protocol_plots

        write_protocol_plots(summary.to_mapping(), directory)
    if form == "json":
        typer.echo(text, nl=False)
        return
    from foretune.cli.study_text import print_markdown, print_summary

    if form == "markdown":
        print_markdown(summary)
        return
    print_summary(summary)
    typer.echo(f"Numbers: {directory / STUDY_FILE}")
    if has_plot:
        typer.echo(f"Plot: {directory / 'plot.png'}")
