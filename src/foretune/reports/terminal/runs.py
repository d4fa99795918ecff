"""Stored runs as a table in a terminal, and groups of them."""

from collections.abc import Sequence

from foretune.analyse.run_index.cells import Cell
from foretune.analyse.run_index.selecting import RunTable
from foretune.analyse.run_index.summarising import GroupedRuns, Spread
from foretune.core.input_files import shown
from foretune.core.units import counted_text, duration_text, memory_text
from foretune.reports.terminal.tables import as_text, right, table

MOST_ROWS = 50
"""Of a printed table; CSV and JSON have all."""
_MOST_LETTERS = 60
_ABSENT = "-"


def table_lines(found: RunTable) -> list[str]:
    """The rows, and how many there are."""
    made = table(*map(shown, found.columns))
    for position in range(len(found.columns)):
        if any(isinstance(row[position], (int, float)) for row in found.rows):
            right(made, position)
    for row in found.rows[:MOST_ROWS]:
        made.add_row(*(cell_text(column, cell) for column, cell in zip(found.columns, row, strict=True)))
    lines = as_text(lambda to: to.print(made)).splitlines() if found.rows else []
    return [*lines, *([""] if lines else []), counts_line(found)]


def counts_line(found: RunTable) -> str:
    """How many of how many runs."""
    num_shown = min(len(found.rows), MOST_ROWS)
    first = f"; the first {num_shown:,} are shown" if num_shown < found.num_selected else ""
    more = ". All of them: foretune report DIR --csv runs.csv" if num_shown < len(found.rows) else ""
    return f"{_selected_text(found)}{first}{more}."


def _selected_text(found: RunTable) -> str:
    if not found.num_selected:
        return f"None of {counted_text(found.num_runs, 'runs')} is selected"
    all_of = "" if found.num_selected == found.num_runs else f" of {found.num_runs:,}"
    return f"{found.num_selected:,}{all_of} {'run' if found.num_runs == 1 else 'runs'}"


def summary_lines(found: GroupedRuns) -> list[str]:
    """One line for each group."""
    is_held_out = bool(found.groups) and all(group.is_held_out for group in found.groups)
    loss = "held-out loss" if is_held_out else "loss"
    made = table(*map(shown, found.by), "runs", "samples/s best", "median", "memory least", "median", f"{loss} best",
                 "median", "ended")  # fmt: skip
    num_keys = len(found.by)
    right(made, *range(num_keys, num_keys + 7))
    for group in found.groups:
        keys = [cell_text(name, cell) for name, cell in zip(found.by, group.key, strict=True)]
        made.add_row(
            *keys,
            f"{group.num_runs:,}",
            *_texts("samples_per_s", group.speed),
            *_texts("memory_bytes", group.memory),
            *_texts("loss", group.loss),
            ", ".join(f"{num:,} {status}" for status, num in group.num_by_status.items()),
        )
    lines = as_text(lambda to: to.print(made)).splitlines() if found.groups else []
    common = ", ".join(f"{shown(name)} {cell_text(name, cell)}" for name, cell in found.common.items())
    return [
        *lines,
        *([""] if lines else []),
        *([f"All: {common}"] if common else []),
        *(["Speed, memory and loss are those of finished runs."] if lines else []),
        _selected_text(found.table) + ".",
    ]


def cell_text(column: str, cell: Cell) -> str:
    """A value with the digits and the unit that a reader can use."""
    if cell is None:
        return _ABSENT
    if isinstance(cell, str):
        text = shown(cell)
        return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"
    if column.endswith("_bytes"):
        return memory_text(cell)
    if (column.endswith("_s") and not column.endswith("per_s")) or column.startswith("phases_s."):
        return duration_text(cell)
    if isinstance(cell, int):
        return str(cell)
    # What was measured keeps its zeros, so that digits stand below each other; settings are as they were typed.
    return f"{cell:#.4g}".removesuffix(".") if column.endswith(("per_s", "loss")) else f"{cell:.6g}"


def _texts(column: str, spread: Spread) -> Sequence[str]:
    return cell_text(column, spread.best), cell_text(column, spread.median)
