"""Tables of stored runs for other programs: CSV and JSON with raw numbers."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from foretune.analyse.run_index.selecting import RunTable
from foretune.analyse.run_index.summarising import GroupedRuns, RunGroup
from foretune.reports.run_csv import safe

_FIGURES = (
    "best_samples_per_s", "median_samples_per_s", "least_memory_bytes", "median_memory_bytes", "best_loss",
    "median_loss", "loss_is_held_out",
)  # fmt: skip


def table_csv(table: RunTable) -> str:
    """One row a run."""
    return _csv(table.columns, table.rows)


def table_json(table: RunTable) -> str:
    """One object a run. What it has no value for is null."""
    return _json([dict(zip(table.columns, row, strict=True)) for row in table.rows])


def summary_csv(summary: GroupedRuns) -> str:
    """One row a group, with a column for each status."""
    statuses = sorted({status for group in summary.groups for status in group.num_by_status})
    header = [*summary.by, "runs", *(f"runs {status}" for status in statuses), *_FIGURES]
    rows = [
        [*group.key, group.num_runs, *(group.num_by_status.get(status, 0) for status in statuses), *_figures(group)]
        for group in summary.groups
    ]
    return _csv(header, rows)


def summary_json(summary: GroupedRuns) -> str:
    """One object a group."""
    return _json(
        [
            {
                **summary.common,
                **dict(zip(summary.by, group.key, strict=True)),
                "runs": group.num_runs,
                "runs_by_status": group.num_by_status,
                **dict(zip(_FIGURES, _figures(group), strict=True)),
            }
            for group in summary.groups
        ]
    )


def _figures(group: RunGroup) -> list[Any]:
    spreads = (group.speed, group.memory, group.loss)
    return [value for spread in spreads for value in (spread.best, spread.median)] + [group.is_held_out]


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(safe, header))
    writer.writerows(map(safe, row) for row in rows)
    return out.getvalue()


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
