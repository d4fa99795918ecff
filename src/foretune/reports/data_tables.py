"""Tables that fit a phone: each cell knows its column, so that a narrow screen can stack a row as a card."""

from collections.abc import Sequence
from dataclasses import dataclass

from foretune.reports.markup import Markup, tag
from foretune.reports.page import scrolled

_MOST_SIDE_BY_SIDE = 4
"""Columns of short cells that fit a phone."""


@dataclass(frozen=True)
class TableColumn:
    """One column: its heading, and the class of its cells."""

    name: str
    class_: str | None = None


@dataclass(frozen=True)
class TableCell:
    """Content that reaches over several columns, or that has a class of its own."""

    content: str
    span: int = 1
    class_: str | None = None


@dataclass(frozen=True)
class TableRow:
    """The first cell names the row."""

    cells: Sequence[str | TableCell]
    class_: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class Rows:
    """Rows that belong together, with a title above them where there are several such groups."""

    rows: Sequence[TableRow]
    title: str | None = None
    id: str | None = None


def numeric(name: str) -> TableColumn:
    """A column of numbers."""
    return TableColumn(name, "number")


def data_table(
    caption: str,
    columns: Sequence[TableColumn],
    groups: Sequence[Rows],
    class_: str = "",
    *,
    has_short_cells: bool = False,
) -> Markup:
    """A table in its scroll container; the caption is for screen readers.

    On a phone each row becomes a card, unless short cells in a few columns fit side by side.
    """
    narrow = "wraps" if has_short_cells and len(columns) <= _MOST_SIDE_BY_SIDE else "stacks"
    head = tag("thead", tag("tr", (tag("th", one.name, scope="col", class_=one.class_) for one in columns)))
    bodies = []
    for group in groups:
        rows = [_row(row, columns) for row in group.rows]
        if group.title is not None:
            title = tag("th", group.title, colspan=len(columns), scope="rowgroup", class_="group")
            rows.insert(0, tag("tr", title, class_="group-row"))
        bodies.append(tag("tbody", rows, id=group.id))
    title = tag("caption", caption, class_="hidden")
    return scrolled(tag("table", title, head, bodies, class_=f"{narrow} {class_}".strip()), caption)


def _row(row: TableRow, columns: Sequence[TableColumn]) -> Markup:
    first, *others = row.cells
    made = [tag("th", first.content if isinstance(first, TableCell) else first, scope="row")]
    place = 1
    for given in others:
        cell = given if isinstance(given, TableCell) else TableCell(given)
        column = columns[place]
        made.append(
            tag(
                "td",
                cell.content,
                class_=cell.class_ or (column.class_ if cell.span == 1 else None),
                colspan=cell.span if cell.span > 1 else None,
                data_label=column.name if cell.span == 1 else None,
            )
        )
        place += cell.span
    assert place == len(columns), f"{place} cells below {len(columns)} headings"
    return tag("tr", made, class_=row.class_, id=row.id)
