"""Figures beside the tensors: each has a source and a spread, and a planted mistake is seen."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.catalog import CatalogError
from foretune.catalog.overheads import overheads, read_overheads
from foretune.catalog.rows import DATA_DIR

Rows = list[dict[str, str]]


def _mutated(tmp_path: Path, mutate: Callable[[Rows], None]) -> Path:
    with (DATA_DIR / "overheads.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    mutate(rows)
    path = tmp_path / "overheads.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def _change(**cells: str) -> Callable[[Rows], None]:
    return lambda rows: rows[0].update(cells)


def _double(rows: Rows) -> None:
    rows.append(rows[0])


def test_every_constant_has_a_row_for_every_kind() -> None:
    kinds = {"cuda", "rocm", "mps", "cpu"}
    for constant in ("context", "driver", "display", "blas_workspace", "matmul_workspace"):
        named = {name for row in overheads() if row.constant == constant for name in row.applies_to}
        assert kinds <= named, constant


def test_units_belong_to_constants() -> None:
    units = {
        "context": "MiB",
        "driver": "MiB",
        "display": "MiB",
        "blas_workspace": "bytes",
        "matmul_workspace": "bytes",
        "working_set": "share",
        "host_runtime": "MiB",
    }
    for row in overheads():
        assert row.unit == units[row.constant], row


def test_what_is_an_assumption_is_graded_so() -> None:
    for row in overheads():
        if row.source.startswith("assumption"):
            assert row.grade == "C", row


@pytest.mark.parametrize(
    ("mutate", "complaint"),
    [
        (_change(applies_to="rtx-9999"), "no device, architecture or kind is named 'rtx-9999'"),
        (_change(source=""), "source"),
        (_change(likely="9999"), "outside its spread"),
        (_change(low="-1"), "low"),
        (_change(constant="warmth"), "constant"),
        (_change(unit="share"), "at most one"),
        (_change(read_on="yesterday"), "read_on"),
        (_double, "appears twice"),
    ],
)
def test_a_planted_mistake_is_seen(tmp_path: Path, mutate: Callable[[Rows], None], complaint: str) -> None:
    with pytest.raises(CatalogError, match=complaint):
        read_overheads(_mutated(tmp_path, mutate))
