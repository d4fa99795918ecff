"""`foretune profile`: a look inside a few steps, and what holds them back."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.options import DataPlace
from foretune.core.errors import MissingExtra


def profile(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|EXPERIMENT|RUN", help="A model or an experiment file; or a run directory that has a trace."
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes for this run: key=value ...", show_default=False)
    ] = None,
    data: DataPlace = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, max=100, help="Steps under the profiler. Default: 5.")
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where run directories are made.")] = Path("runs"),
) -> None:
    """Profile. Example: foretune profile experiment.yaml --steps 5, or: foretune profile runs/<experiment>/latest"""
    from foretune.api.profile import profile as run_profile
    from foretune.cli.progress import ProgressObserver
    from foretune.reports.terminal.profile import say_digest

    with ProgressObserver() as observer:
        found = run_profile(target, overrides, data=data, steps=steps, runs=runs, observer=observer)
    say_digest(found.digest)
    typer.echo("")
    for diagnosis in found.diagnoses:
        good = diagnosis.kind == "healthy"
        typer.secho(diagnosis.text[0].upper() + diagnosis.text[1:] + ".", fg="green" if good else "yellow")
    typer.echo("")
    typer.echo(f"Trace: {found.trace} (opens in ui.perfetto.dev and in TensorBoard's profiler plugin)")
    try:
        drawn = found.write_plots()
    except MissingExtra as missing:
        typer.echo(f"No plot: {missing}")
        return
    typer.echo("Plot: " + ", ".join(str(path) for path in drawn))
