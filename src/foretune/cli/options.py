"""Options that several commands share, and those that do not go with others.

They are refused, because an option that is silently ignored is a wrong measurement.
"""

from collections.abc import Mapping
from typing import Annotated

import typer

from foretune.core.errors import UserError

DataPlace = Annotated[
    str | None,
    typer.Option("--data", "-d", help="With a model: a folder with images and captions, or a packed or encoded set."),
]
"""For commands that take a model in place of an experiment file."""

SIZE = "Pixels: 512, or width and height: 416x240 or 416,240."
"""Help of options that take a size."""


def refuse_given(context: typer.Context, reasons: Mapping[str, str]) -> None:
    """Refuses the first of these parameters that was typed, with the sentence that says why and what to type."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        # By name: the class that it is of belongs to whichever click typer brings along.
        if parameter.name in reasons and source is not None and source.name == "COMMANDLINE":
            option = (*parameter.opts, *parameter.secondary_opts)[0]
            raise UserError(f"{option} {reasons[parameter.name]}")
