"""Options of the commands whose runs an executor starts."""

from typing import Annotated

import typer

Executor = Annotated[str, typer.Option("--executor", help="Where it runs: local, slurm, ray, or sky for clouds.")]
Jobs = Annotated[int | None, typer.Option("--jobs", help="Runs at once. Default: one for each GPU, or one on a CPU.")]
ExecutorOptions = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the executor, such as partition=gpu.")
]
