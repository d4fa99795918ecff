"""Reading data files row by row and saying everything that is wrong with a file at once."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

DATA_DIR = Path(__file__).parent / "data"

NAME_PATTERN = r"^[a-z0-9]+([._-][a-z0-9_]+)*$"
"""Lower-case and typeable on a command line without quotes."""


class CatalogError(AssertionError):
    """A data file of ours breaks its own rules. An assertion, not a `UserError`: no user can fix it."""

    def __init__(self, file: str, problems: Sequence[str]) -> None:
        self.file, self.problems = file, tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{file} has {len(self.problems)} problem(s):\n{lines}")


class Row(BaseModel):
    """One fact sheet: frozen, closed to unknown columns, every column present, no infinity and no NaN.

    An unknown value is None, written as an empty cell or as null; there are no defaults, so that a column
    cannot go missing unnoticed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


RowT = TypeVar("RowT", bound=Row)


def read_csv(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a CSV file with a header, and what is wrong with its form; an empty cell is None."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = list(csv.reader(file))
    problems = [f"column {name!r} appears twice" for name in sorted(set(header)) if header.count(name) > 1]
    rows: list[dict[str, Any]] = []
    for number, cells in enumerate(lines, start=1):
        if len(cells) != len(header):
            problems.append(f"row {number}: {len(cells)} cells for {len(header)} columns")
        rows.append({name: cell or None for name, cell in zip(header, cells, strict=False)})
        problems += [
            f"row {number}, {name}: blanks round {cell!r}"
            for name, cell in zip(header, cells, strict=False)
            if cell != cell.strip()
        ]
    return rows, problems


def read_json(path: Path, key: str) -> list[dict[str, Any]]:
    """The list of rows under one key of a JSON file. A key that stands twice in an object is refused,
    since JSON readers keep the last one silently.
    """

    def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            names = [name for name, _ in pairs]
            raise CatalogError(path.name, [f"key {n!r} appears twice" for n in mapping if names.count(n) > 1])
        return mapping

    document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_doubles)
    rows = document.get(key) if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CatalogError(path.name, [f"holds no list of objects named {key!r}"])
    return rows


def validated(row_type: type[RowT], raw_rows: Iterable[Mapping[str, Any]], label: str) -> tuple[list[RowT], list[str]]:
    """The rows that are sound, and one sentence for each fault of the others: row, field, fault, value found.

    `label` is the field that names a row to the reader.
    """
    rows: list[RowT] = []
    problems: list[str] = []
    for number, raw in enumerate(raw_rows, start=1):
        try:
            rows.append(row_type.model_validate(raw))
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                field = ".".join(str(part) for part in fault["loc"]) or "the whole row"
                found = f" (found {fault['input']!r:.80})" if fault["loc"] else ""
                problems.append(f"row {number} ({raw.get(label)}), {field}: {fault['msg']}{found}")
    return rows, problems


def doubles(rows: Iterable[RowT], identify: Callable[[RowT], object]) -> list[str]:
    """One sentence for each row whose identity an earlier row already has."""
    seen: set[object] = set()
    problems: list[str] = []
    for row in rows:
        if identify(row) in seen:
            problems.append(f"{identify(row)}: appears twice")
        seen.add(identify(row))
    return problems


def raise_all(path: Path, problems: Sequence[str]) -> None:
    """Raise if anything was found wrong with the file."""
    if problems:
        raise CatalogError(path.name, problems)
