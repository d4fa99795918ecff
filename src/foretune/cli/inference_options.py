"""Options for how a model samples, the same for `sample`, `evaluate` and the inference bench."""

from typing import Annotated, Literal

import typer

Compile = Annotated[
    Literal["off", "regional"], typer.Option("--compile", help="For sampling: regional compiles the repeated blocks.")
]
Merge = Annotated[bool, typer.Option("--merge", help="For sampling: add adapters, or that of the run, to the weights.")]
Devices = Annotated[
    int,
    typer.Option(
        "--devices", min=1, help="For sampling: devices of this machine. Each holds the model and makes its share."
    ),
]
