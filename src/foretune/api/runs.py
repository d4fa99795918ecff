"""`runs`: stored runs by what they were asked and what was measured, thousands of them in seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.run import RunLike, paths_of
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.analyse.run_index.cells import Cell
    from foretune.analyse.run_index.selecting import RunTable, Selection
    from foretune.analyse.run_index.summarising import GroupedRuns


@dataclass(frozen=True)
class StoredRuns:
    """The selected runs, as a table of raw numbers."""

    found: "RunTable"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.found.columns

    @cached_property
    def rows(self) -> "list[dict[str, Cell]]":
        """One mapping a run, by column; None is not measured, or not a setting of this run."""
        return [dict(zip(self.found.columns, row, strict=True)) for row in self.found.rows]

    @cached_property
    def paths(self) -> list[Path]:
        """The run directory of each row."""
        return [Path(folder) for folder in self.found.folders]

    @property
    def num_selected(self) -> int:
        """Runs for which the conditions hold; `top` may leave out some of their rows."""
        return self.found.num_selected

    @cached_property
    def csv(self) -> str:
        from foretune.reports.stored_runs import table_csv

        return table_csv(self.found)

    @cached_property
    def json(self) -> str:
        from foretune.reports.stored_runs import table_json

        return table_json(self.found)

    def __len__(self) -> int:
        return len(self.found.rows)

    def __str__(self) -> str:
        from foretune.reports.terminal.runs import table_lines

        return "\n".join(table_lines(self.found))


@dataclass(frozen=True)
class StoredGroups:
    """The selected runs in groups."""

    found: "GroupedRuns"

    @cached_property
    def csv(self) -> str:
        from foretune.reports.stored_runs import summary_csv

        return summary_csv(self.found)

    @cached_property
    def json(self) -> str:
        from foretune.reports.stored_runs import summary_json

        return summary_json(self.found)

    def __len__(self) -> int:
        return len(self.found.groups)

    def __str__(self) -> str:
        from foretune.reports.terminal.runs import summary_lines

        return "\n".join(summary_lines(self.found))


def runs(
    folders: RunLike | Iterable[RunLike],
    *,
    where: str | Sequence[str] = (),
    sort: str | None = None,
    top: int | None = None,
    columns: Sequence[str] | None = None,
    observer: Observer | None = None,
) -> StoredRuns:
    """Selects stored runs.

    Args:
        folders: folders of runs, or run directories.
        where: conditions that must all hold, such as "status=finished" or "train.batch_size>=4".
        sort: a column, best first; "column:asc" or "column:desc" to choose.
        top: the first so many rows.
        columns: what to show of each run: any setting by its dotted key, and any figure.
        observer: receives progress where many runs are read for the first time.
    """
    from foretune.analyse.run_index.selecting import select_runs

    return StoredRuns(select_runs(paths_of(folders), _selection(where, columns, sort, top), observer))


def summarise_runs(
    folders: RunLike | Iterable[RunLike],
    *,
    where: str | Sequence[str] = (),
    by: Sequence[str] | None = None,
    observer: Observer | None = None,
) -> StoredGroups:
    """Counts stored runs by group and status, with the best and the median of speed, memory and loss.

    Args:
        folders: folders of runs, or run directories.
        where: conditions that must all hold.
        by: the columns that make a group. Default: model, method, and whichever of quantised base, precision, device
            and kind of run differ.
        observer: receives progress where many runs are read for the first time.
    """
    from foretune.analyse.run_index.summarising import summarise

    return StoredGroups(summarise(paths_of(folders), _selection(where), by, observer))


def _selection(
    where: str | Sequence[str],
    columns: Sequence[str] | None = None,
    sort: str | None = None,
    top: int | None = None,
) -> "Selection":
    from foretune.analyse.run_index.selecting import Selection

    return Selection.of((where,) if isinstance(where, str) else where, columns, sort, top)
