"""`foretune sweep`: many configurations of one experiment by one command."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretune.api.sweep import PRESET_NAMES, sweep_path
from foretune.cli.executor_options import Executor, ExecutorOptions, Jobs
from foretune.core.errors import UserError

if TYPE_CHECKING:
    from foretune.api.sweep import SweepOutcome, Watch
    from foretune.cli.progress import ProgressObserver

_LOGGED_EVERY_S = 60.0

Target = Annotated[
    str, typer.Argument(help=f"A sweep file; an experiment file; or a preset: {', '.join(PRESET_NAMES)}.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[key=value ...]", help="key=a,b,c sweeps over several values; key=a changes the experiment."
    ),
]
Measured = Annotated[
    str | None, typer.Option("--measure", help="train, or speed: time and memory of optimizer steps alone.")
]
Seeds = Annotated[
    list[int] | None, typer.Option("--seed", help="Run each combination with this seed; several are repeats.")
]
Quick = Annotated[bool, typer.Option("--quick", help="The shorter form of a preset: to try it, not to quote it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --executor sky: write a SkyPilot task file and exit.")]
Show = Annotated[bool, typer.Option("--show", help="Print the sweep file and exit, to copy and change it.")]


def sweep(
    target: Target,
    overrides: Overrides = None,
    executor: Executor = "local",
    jobs: Jobs = None,
    option: ExecutorOptions = None,
    measure: Measured = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimizer steps of each trial.")] = None,
    seed: Seeds = None,
    model: Annotated[str | None, typer.Option("--model", help="Sweep this model instead of the file's.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the sweep's folder.")] = None,
    quick: Quick = False,
    new: Annotated[bool, typer.Option("--new", help="Start a new folder, and measure everything again.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run trials again that did not finish.")] = False,
    plot: Annotated[bool, typer.Option(help="Draw the results by axis.")] = True,
    show: Show = False,
    dry_run: DryRun = False,
    sweeps: Annotated[Path, typer.Option("--sweeps", help="Where results are stored.")] = Path("sweeps"),
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
) -> None:
    """Run one experiment in many configurations. The same command continues a sweep that was stopped.

    Examples: foretune sweep sweep.yaml, foretune sweep experiment.yaml train.batch_size=1,4,8
    """
    if show:
        typer.echo(sweep_path(target).read_text(encoding="utf-8"), nl=False)
        return
    if dry_run:
        _write_cloud_task(target, overrides or (), executor, option or ())
        return
    from foretune.api.sweep import sweep as run_sweep
    from foretune.cli.progress import ProgressObserver

    with _ended_by_schedulers(), ProgressObserver() as observer:
        outcome = run_sweep(
            target,
            overrides or (),
            executor=executor,
            jobs=jobs,
            options=option or (),
            measure=measure,
            steps=steps,
            seeds=seed or (),
            model=model,
            name=name,
            quick=quick,
            new=new,
            retry=retry,
            sweeps=sweeps,
            plot=plot,
            observer=observer,
            watcher=_watcher(observer),
        )
    if as_json:
        typer.echo(outcome.json, nl=False)
    else:
        _print(outcome, has_plots=plot)
    if not any(result.is_done for result in outcome.results):
        raise typer.Exit(1)


def _write_cloud_task(target: str, overrides: Sequence[str], executor: str, options: Sequence[str]) -> None:
    from foretune.api.sweep import write_cloud_task

    if executor != "sky":
        raise UserError("--dry-run goes with --executor sky.")
    path = write_cloud_task(target, overrides, options=options)
    typer.echo(f"Wrote {path}. Launch it: sky jobs launch {path}")


def _watcher(observer: "ProgressObserver") -> "Watch":
    """A line for each trial that ends, and one that says what runs: in a log file, seldom."""
    from foretune.reports.terminal.sweep import progress_line, trial_line

    last_s = float("-inf")

    def watch(result: Any, progress: Any) -> None:
        nonlocal last_s
        if result is not None:
            observer.message(trial_line(result, progress))
        elif progress.running and (observer.console.is_terminal or time.monotonic() - last_s >= _LOGGED_EVERY_S):
            last_s = time.monotonic()
            total = progress.num_planned or progress.num_ended + len(progress.running)
            observer.preparing(progress_line(progress), progress.num_ended, total)

    return watch


def _print(outcome: "SweepOutcome", *, has_plots: bool) -> None:
    from foretune.reports.terminal.sweep import print_summary

    print_summary(outcome.summary)
    typer.echo(f"Table: {outcome.path / 'runs_summary.csv'}")
    for picture in sorted(outcome.path.glob("plot-*.png")) if has_plots else ():
        typer.echo(f"Plot: {picture}")
    problems = list(outcome.problems)
    if len(problems) == 1:
        typer.echo(f"1 trial did not finish; its log: {outcome.path / 'trials' / problems[0] / 'log.txt'}")
    elif problems:
        typer.echo(f"{len(problems)} trials did not finish; their logs: {outcome.path / 'trials'}/*/log.txt")


@contextmanager
def _ended_by_schedulers() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does, so that no trial is left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Stopped. Trials that have ended are kept; the same command continues the sweep.", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
