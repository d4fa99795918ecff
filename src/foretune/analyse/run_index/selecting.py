"""Rows of an index: those for which conditions hold, in an order, and no more than wanted."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.analyse.run_index.cells import Cell
from foretune.analyse.run_index.columns import PATH, is_better_high, require_known
from foretune.analyse.run_index.conditions import Condition, condition_of
from foretune.analyse.run_index.indexing import Refreshed, read_index
from foretune.core.errors import UserError
from foretune.core.observer import Observer

DEFAULT_COLUMNS = (
    PATH, "kind", "model", "method.kind", "status", "steps", "samples_per_s", "memory_bytes", "last_loss",
)  # fmt: skip
_SORT = re.compile(r"(?P<column>.+?)(?::(?P<order>asc|desc))?")


@dataclass(frozen=True)
class Selection:
    """Which runs, in which order, and what is shown of them."""

    where: tuple[Condition, ...] = ()
    columns: tuple[str, ...] | None = None
    """None: the usual ones, and those that a condition or the order names."""
    sort: str | None = None
    is_descending: bool = False
    top: int | None = None

    @classmethod
    def of(
        cls,
        where: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        sort: str | None = None,
        top: int | None = None,
    ) -> "Selection":
        """As it is typed. Without :asc or :desc, a sorted table begins with the best."""
        conditions = tuple(condition_of(text) for text in where)
        named = None if columns is None else tuple(name.strip() for name in columns if name.strip())
        if named == ():
            raise UserError("No column was named. Example: foretune report runs --columns path,model,samples_per_s")
        if top is not None and top < 1:
            raise UserError(f"At least one run is needed, not {top}. Example: foretune report runs --top 20")
        match = None if sort is None else _SORT.fullmatch(sort.strip())
        column = None if match is None else match["column"]
        order = None if match is None else match["order"]
        is_descending = column is not None and (is_better_high(column) if order is None else order == "desc")
        return cls(conditions, named, column, is_descending, top)

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of the table."""
        if self.columns is not None:
            return self.columns
        more = [condition.column for condition in self.where] + ([] if self.sort is None else [self.sort])
        return tuple(dict.fromkeys((*DEFAULT_COLUMNS, *more)))


@dataclass(frozen=True)
class RunTable:
    """Rows of runs, raw numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folders: tuple[str, ...]
    """The run directory of each row."""
    num_selected: int
    """Runs for which the conditions hold, of which the table may show the first."""
    num_runs: int
    """Runs of all folders."""
    num_read: int
    """Runs whose files were read, because they were not indexed yet or had changed."""


def select_runs(folders: Sequence[Path], selection: Selection, observer: Observer | None = None) -> RunTable:
    """The runs of these folders, each once."""
    columns = selection.shown
    needed = columns if selection.sort is None else (*columns, selection.sort)
    rows: dict[str, tuple[Cell, ...]] = {}
    num_runs = num_read = 0
    found: list[set[str]] = []
    for folder in folders:
        answer = _of_folder(folder, selection, needed, observer)
        num_runs, num_read = num_runs + answer.num_runs, num_read + answer.num_read
        rows = answer.rows | rows
        found.append(answer.columns)
    named = [*needed, *(condition.column for condition in selection.where)]
    require_known(named, set().union(*found))
    ordered = sorted(rows.items())
    if selection.sort is not None:
        ordered = _sorted(ordered, is_descending=selection.is_descending)
    shown = ordered[: selection.top]
    return RunTable(
        columns=columns,
        rows=tuple(cells[: len(columns)] for _, cells in shown),
        folders=tuple(folder for folder, _ in shown),
        num_selected=len(ordered),
        num_runs=num_runs,
        num_read=num_read,
    )


@dataclass(frozen=True)
class _Answer:
    rows: dict[str, tuple[Cell, ...]]
    columns: set[str]
    num_runs: int
    num_read: int


def _of_folder(folder: Path, selection: Selection, columns: Sequence[str], observer: Observer | None) -> _Answer:
    if not folder.is_dir():
        what = "is a file, not a folder of runs" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}. Example: foretune report runs --summary")
    return read_index(folder, lambda found: _answer(folder, found, selection, columns), observer)


def _answer(folder: Path, refreshed: Refreshed, selection: Selection, columns: Sequence[str]) -> _Answer:
    index, root = refreshed.index, folder.resolve()
    if not refreshed.num_runs:
        raise UserError(
            f"There is no run in {folder}: no folder below it has an experiment.yaml. "
            "`foretune bench` and `foretune train` print the paths of what they make."
        )
    # The folder is no column of the index, but it can be one of the table; each row begins with it.
    stored = list(dict.fromkeys(column for column in columns if column != PATH))
    parts = [condition.sql(index.quoted) for condition in selection.where]
    where = " AND ".join(part for part, _ in parts) or "1"
    found = index.select(stored, where, [value for _, values in parts for value in values])
    places = [0 if column == PATH else stored.index(column) + 1 for column in columns]
    rows = {f"{root}/{row[0]}": tuple([row[place] for place in places]) for row in found}
    return _Answer(rows, set(index.columns), refreshed.num_runs, refreshed.num_read)


def _sorted(rows: Sequence[tuple[str, tuple[Cell, ...]]], *, is_descending: bool) -> list[tuple[str, tuple[Cell, ...]]]:
    """By their last cell: numbers, then text, then what has no value, whichever way round."""
    numbers = [(cell, row) for row in rows if isinstance(cell := row[1][-1], (int, float))]
    texts = [(cell, row) for row in rows if isinstance(cell := row[1][-1], str)]
    absent = [row for row in rows if row[1][-1] is None]
    numbers.sort(key=lambda found: found[0], reverse=is_descending)
    texts.sort(key=lambda found: found[0], reverse=is_descending)
    return [*(row for _, row in numbers), *(row for _, row in texts), *absent]
