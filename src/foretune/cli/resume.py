"""`foretune resume`: an interrupted run continues."""

from pathlib import Path
from typing import Annotated

import typer

from foretune.cli.ending import finished_run


def resume(
    run: Annotated[Path, typer.Argument(help="A run directory: runs/<experiment>/<run id>.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Another way to compute the same run: key=value ...", show_default=False),
    ] = None,
) -> None:
    """Go on with an interrupted run, bit for bit as if it had never stopped. On other devices, or with less memory:
    foretune resume RUN parallel.devices=2 train.gradient_accumulation=4 levers.gradient_checkpointing=1
    """
    from foretune.api.train import resume as resume_run

    finished_run(lambda observer: resume_run(run, overrides, stop_on_signals=True, observer=observer))
