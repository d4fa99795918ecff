"""`foretune resume`: an interrupted run continues."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.ending import finished_run


def resume(
    run: Annotated[Path, typer.Argument(help="A run directory: runs/<experiment>/<run id>.")],
) -> None:
    """Go on with an interrupted run, bit for bit as if it had never stopped."""
    from foretune.api.train import resume as resume_run

    finished_run(lambda observer: resume_run(run, stop_on_signals=True, observer=observer))
