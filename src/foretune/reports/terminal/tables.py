"""Tables in a terminal, a file or a pipe."""

import os
import shutil
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

# A row in a file or a pipe is one line, however long.
_WIDTH_OF_A_PIPE = 400


def console(*, markup: bool = True) -> "Console":
    """Where tables are printed: in colour in a terminal, unless NO_COLOR is set.

    Without `markup`, brackets in a text are brackets: texts of strangers are printed so.
    """
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    found = Console(highlight=False, soft_wrap=True, color_system=None if plain else "auto", markup=markup)
    if not found.is_terminal:
        found.width = _WIDTH_OF_A_PIPE
    return found


def wrapping_console() -> "Console":
    """Wraps sentences inside their column of a table, in a terminal or where COLUMNS is set."""
    found = console()
    if found.is_terminal or os.environ.get("COLUMNS"):
        found.soft_wrap = False
        found.width = shutil.get_terminal_size().columns
    return found


def as_text(print_to: "Callable[[Console], None]") -> str:
    """What is printed, without colours."""
    from rich.console import Console

    written = StringIO()
    print_to(Console(file=written, highlight=False, soft_wrap=True, color_system=None, width=_WIDTH_OF_A_PIPE))
    return "\n".join(line.rstrip() for line in written.getvalue().rstrip().splitlines())


def table(*headings: str) -> "Table":
    """A table without lines."""
    from rich.table import Table

    return Table(*headings, box=None, pad_edge=False, header_style="bold")


def right(made: "Table", *columns: int) -> None:
    """Numbers stand at the right of their columns."""
    for column in columns:
        made.columns[column].justify = "right"
