"""`foretune profile`: a look inside a few steps, and what holds them back."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.cli.quiet import quieten
from foretune.cli.starting import read_to_start
from foretune.core.errors import MissingExtra

if TYPE_CHECKING:
    from foretune.analyse.trace_digest import TraceDigest


def profile(
    target: Annotated[Path, typer.Argument(help="An experiment file, or a run directory that has a trace.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes for this run: key=value ...", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, max=100, help="Steps under the profiler.")] = 5,
    runs: Annotated[Path, typer.Option("--runs", help="Where run directories are made.")] = Path("runs"),
) -> None:
    """Profile. Example: foretune profile experiment.yaml --steps 5, or: foretune profile runs/<experiment>/latest"""
    from foretune.analyse.diagnosis import diagnose, evidence_of
    from foretune.analyse.trace_digest import digest, newest_trace
    from foretune.cli.profile_text import say_digest

    run = target if target.is_dir() else _profiled(target, overrides or [], steps, runs)
    trace = newest_trace(run)
    found = digest(trace, within=run)
    say_digest(found)
    typer.echo("")
    for diagnosis in diagnose(evidence_of(run, found)):
        good = diagnosis.kind == "healthy"
        typer.secho(diagnosis.text[0].upper() + diagnosis.text[1:] + ".", fg="green" if good else "yellow")
    typer.echo("")
    typer.echo(f"Trace: {trace} (opens in ui.perfetto.dev and in TensorBoard's profiler plugin)")
    _draw(found, trace.parent)


def _profiled(experiment: Path, overrides: list[str], steps: int, runs: Path) -> Path:
    # The profiler's own log lines; they are read once, when torch is imported.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    asked = read_to_start(experiment, overrides, "Profiling", ("data", "adapters"))
    from foretune.run.busyness import BusyWatch

    watch = BusyWatch()
    quieten()
    from foretune.cli.progress import ProgressObserver
    from foretune.run.profiling.running import profile as run_profile

    with ProgressObserver() as observer:
        watch.warn(observer)
        return run_profile(asked, runs, steps, observer).path


def _draw(found: "TraceDigest", directory: Path) -> None:
    from foretune.reports.profile_plot import write_profile_plot

    try:
        drawn = write_profile_plot(found, directory)
    except MissingExtra as missing:
        typer.echo(f"No plot: {missing}")
        return
    typer.echo("Plot: " + ", ".join(str(path) for path in drawn))
