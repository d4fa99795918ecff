"""`foretune resume`: an interrupted run goes on."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.extras import require
from foretune.cli.quiet import quieten


def resume(
    run: Annotated[Path, typer.Argument(help="A run directory: runs/<experiment>/<run id>.")],
) -> None:
    """Go on with an interrupted run, bit for bit as if it had never stopped."""
    from foretune.record.run_directory import RunDirectory

    directory = RunDirectory.open(run)
    require("train", "Training")
    from foretune.run.busyness import BusyWatch

    watch = BusyWatch()
    quieten()
    from foretune.cli.progress import ProgressObserver
    from foretune.cli.summary import ended_by_ctrl_c, finish
    from foretune.run.train import resume as go_on

    with ended_by_ctrl_c(), ProgressObserver() as observer:
        watch.warn(observer)
        plan = directory.read_plan()
        if plan is not None:
            observer.expect(plan)
        trained = go_on(directory, observer)
    finish(trained)
