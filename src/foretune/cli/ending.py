"""How a run ends in a terminal: what was trained, what changed, how fast, what to do next."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.core.interrupts import Interrupted
from foretune.core.units import counted_text, duration_text

if TYPE_CHECKING:
    from foretune.api.run import Run
    from foretune.core.observer import Observer


def finished_run(start: "Callable[[Observer], Run]") -> None:
    """Runs it with progress and prints its summary; a run that did not finish ends the process with an error."""
    from foretune.api.processes import later_rank
    from foretune.api.run import RunFailed
    from foretune.cli.progress import ProgressObserver, SilentObserver

    # Of several processes the first one shows what all of them do.
    is_silent = later_rank() is not None
    try:
        with nullcontext(SilentObserver()) if is_silent else ProgressObserver() as observer:
            run = start(observer)
    except Interrupted as interrupt:
        typer.secho(str(interrupt), err=True)
        raise typer.Exit(130) from interrupt
    except RunFailed as failure:
        run = failure.run
    if not is_silent:
        _print(run)
    assert run.record is not None
    _exit_unless_finished(run.record.outcome.status)


def rehearsed(experiment: str, overrides: list[str] | None, data: str | None, runs: Path) -> None:
    """Rehearses a run and prints what it found; a rehearsal that fails ends the process with an error."""
    from foretune.api.rehearse import rehearse
    from foretune.api.run import RunFailed
    from foretune.cli.progress import ProgressObserver

    try:
        with ProgressObserver() as observer:
            found = rehearse(experiment, overrides, data=data, runs=runs, observer=observer)
    except KeyboardInterrupt as interrupt:
        typer.secho("The rehearsal was interrupted. The run was not started.", err=True)
        raise typer.Exit(130) from interrupt
    except RunFailed as failure:
        typer.secho("The rehearsal failed, and the run was not started.", fg="red", err=True)
        _print(failure.run)
        raise typer.Exit(1) from failure
    typer.echo(str(found))


def _print(run: "Run") -> None:
    from foretune.reports.terminal.run import measurements, weight_lines

    record = run.record
    assert record is not None, "a run that ended has a record"
    changed = None
    if run.num_changed_tensors is not None:
        changed = f"{run.num_changed_tensors} of {run.num_trained_tensors} trained tensors changed"
    for line in weight_lines(record, changed, base_unchanged=run.base_unchanged):
        typer.echo(line)
    for line in measurements(record, run.experiment.profile):
        typer.echo(line)
    outcome = record.outcome
    if outcome.status == "finished":
        typer.echo(
            f"Finished {counted_text(outcome.steps_done, 'steps')} in {duration_text(record.wall_s)}: {run.path}"
        )
        typer.echo(f"Next: foretune export {run.path}")
        return
    typer.secho(f"{outcome.status.capitalize()} after step {outcome.steps_done}: {outcome.reason}", fg="red", err=True)
    if run.can_resume:
        typer.secho(f"Continue with: foretune resume {run.path}", err=True)


def _exit_unless_finished(status: str) -> None:
    if status != "finished":
        raise typer.Exit(130 if status == "interrupted" else 1)
