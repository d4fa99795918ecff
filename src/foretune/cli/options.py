"""Options that do not go with others: refused, because an option that is silently ignored is a wrong measurement."""

from collections.abc import Mapping

import typer

from foretune.core.errors import UserError


def refuse_given(context: typer.Context, reasons: Mapping[str, str]) -> None:
    """Refuses the first of these parameters that was typed, with the sentence that says why and what to type."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        # By name: the class that it is of belongs to whichever click typer brings along.
        if parameter.name in reasons and source is not None and source.name == "COMMANDLINE":
            option = (*parameter.opts, *parameter.secondary_opts)[0]
            raise UserError(f"{option} {reasons[parameter.name]}")
