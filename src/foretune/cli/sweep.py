"""`foretune sweep`: many configurations of one experiment by one command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretune.api.sweep import PRESET_NAMES, sweep_path
from foretune.cli.executor_options import executor_options

if TYPE_CHECKING:
    from foretune.sweeps.controller import SweepProgress
    from foretune.sweeps.trial_results import TrialResult


def sweep(
    target: Annotated[
        str, typer.Argument(help=f"A sweep file; an experiment file; or a preset: {', '.join(PRESET_NAMES)}.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value ...]", help="key=a,b,c sweeps over several values; key=a changes the experiment."
        ),
    ] = None,
    executor: Annotated[str, typer.Option("--executor", help="Where trials run: local, slurm, ray or sky.")] = "local",
    jobs: Annotated[int | None, typer.Option("--jobs", help="Trials that run at once.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the executor, such as partition=gpu.")
    ] = None,
    measure: Annotated[
        str | None, typer.Option("--measure", help="train, or speed: time and memory of optimizer steps alone.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimizer steps of each trial.")] = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="Run each combination with this seed; several are repeats.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Sweep this model instead of the file's.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the sweep's folder.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The preset's shorter form: to try it, not to quote it.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Start a new folder, and measure everything again.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run trials again that did not finish.")] = False,
    plot: Annotated[bool, typer.Option(help="Draw the results by axis.")] = True,
    show: Annotated[bool, typer.Option("--show", help="Print the sweep file and exit, to copy and change it.")] = False,
    sweeps: Annotated[Path, typer.Option("--sweeps", help="Where results are stored.")] = Path("sweeps"),
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
) -> None:
    """Run one experiment in many configurations. The same command continues a sweep that was stopped.

    Examples: foretune sweep sweep.yaml, foretune sweep experiment.yaml train.batch_size=1,4,8
    """
    if show:
        typer.echo(sweep_path(target).read_text(encoding="utf-8"), nl=False)
        return
    from foretune.api.sweep import sweep as run_sweep
    from foretune.cli.progress import ProgressObserver
    from foretune.reports.terminal.sweep import print_summary, progress_line, trial_line

    with _ended_by_schedulers(), ProgressObserver() as observer:

        def watch(result: "TrialResult | None", progress: "SweepProgress") -> None:
            if result is not None:
                observer.message(trial_line(result, progress))
            elif progress.running:
                total = progress.num_planned or progress.num_ended + len(progress.running)
                observer.preparing(progress_line(progress), progress.num_ended, total)

        try:
            outcome = run_sweep(
                target,
                overrides or (),
                executor=executor,
                jobs=jobs,
                options=executor_options(option or ()),
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
                watcher=watch,
            )
        except KeyboardInterrupt:
            observer.message("Stopped. Trials that have ended are kept; the same command continues the sweep.")
            raise typer.Exit(130) from None
    if as_json:
        typer.echo(outcome.json, nl=False)
    else:
        print_summary(outcome.summary)
        typer.echo(f"Table: {outcome.path / 'runs_summary.csv'}")
        for picture in sorted(outcome.path.glob("plot-*.png")) if plot else ():
            typer.echo(f"Plot: {picture}")
        if outcome.problems:
            typer.echo(
                f"{len(outcome.problems)} trials did not finish; their logs: {outcome.path / 'trials'}/*/log.txt"
            )
    if not any(result.is_done for result in outcome.results):
        raise typer.Exit(1)


@contextmanager
def _ended_by_schedulers() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does, so that no trial is left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
