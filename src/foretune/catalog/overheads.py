"""What a process takes on a device beside its tensors, each figure with its source and its spread."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from foretune.catalog.devices import Device, Grade, Text, devices
from foretune.catalog.rows import DATA_DIR, Row, raise_all, read_csv, validated

Constant = Literal["context", "driver", "display", "blas_workspace", "matmul_workspace", "working_set", "host_runtime"]
Unit = Literal["MiB", "bytes", "share"]
Figure = Annotated[float, Field(ge=0)]


def _names(value: Any) -> Any:
    return tuple(value.split(";")) if isinstance(value, str) else value


class OverheadRow(Row):
    """One figure for some devices: the likely value between the lowest and the highest that were found."""

    constant: Constant
    applies_to: Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)]
    """Names of devices, or of an architecture (ada), or of a kind (cuda). The most exact row counts."""
    unit: Unit
    low: Figure
    likely: Figure
    high: Figure
    what: Text
    source: Annotated[str, Field(min_length=10)]
    read_on: Annotated[str, Field(pattern=r"^20\d\d-\d\d$")]
    """Year and month in which the source was read, or the measurement made."""
    grade: Grade

    @model_validator(mode="after")
    def _figures_agree(self) -> Self:
        if not self.low <= self.likely <= self.high:
            raise ValueError("the likely figure lies outside its spread")
        if self.unit == "share" and self.high > 1:
            raise ValueError("a share is at most one")
        return self


def architecture(device: Device) -> str:
    """The word that rows call an architecture by: ada for "Ada AD102"."""
    return device.arch.split()[0].lower()


def read_overheads(path: Path) -> tuple[OverheadRow, ...]:
    """Every row of a file; raises `CatalogError` with all that is wrong with the file."""
    raw_rows, malformed = read_csv(path)
    rows, problems = validated(OverheadRow, raw_rows, label="constant")
    raise_all(path, [*malformed, *problems, *_misplaced(rows)])
    return tuple(rows)


def _misplaced(rows: Sequence[OverheadRow]) -> list[str]:
    known = {word for row in devices().values() for word in (row.name, architecture(row), row.kind)}
    seen: set[tuple[str, str]] = set()
    problems: list[str] = []
    for row in rows:
        for name in row.applies_to:
            if name not in known:
                problems.append(f"{row.constant}: no device, architecture or kind is named {name!r}")
            if (row.constant, name) in seen:
                problems.append(f"{row.constant}, {name}: appears twice")
            seen.add((row.constant, name))
    return problems


@cache
def overheads() -> tuple[OverheadRow, ...]:
    """Every row of the catalogue, in the catalogue's order."""
    return read_overheads(DATA_DIR / "overheads.csv")
