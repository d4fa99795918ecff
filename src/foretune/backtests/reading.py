"""Reading a file of published measurements that is not the catalogue's: same columns, any words.

The catalogue's own reader knows every word that its file may hold and stops at any other; here a row that cannot be
understood is left out with the reason, and the others are read.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from foretune.backtests.questions import LeftOut
from foretune.backtests.shared.row_format import SharedRow, is_shared, shared_row
from foretune.catalog import Measurement
from foretune.core.errors import UserError
from foretune.core.input_files import open_input, shown

_MOST_BYTES = 64 * 2**20
_MOST_ROWS = 20_000
_MOST_NAME = 80
_MOST_REASON = 400
_FEWEST_COLUMNS = ("id", "task", "model", "method", "framework")
_OUT_OF_MEMORY = re.compile(r"(oom|out of memory|no|does not fit|fails?)\b")
_FITS = re.compile(r"(fits|yes|ok|ran)\b")
_IN_GIB = {"mib": 1 / 1024, "kib": 1 / 2**20, "b": 1 / 2**30, "bytes": 1 / 2**30}


class PublishedRow(Measurement):
    """A row of any file: ids, sources and words are the file's own."""

    id: str
    subset: str  # type: ignore[assignment]
    source_commit: str | None


@dataclass(frozen=True)
class Reading:
    """The rows of some files."""

    rows: tuple[Measurement, ...]
    """As other programs published them."""
    shared: tuple[SharedRow, ...]
    """Of `foretune bench --share`."""
    left_out: tuple[LeftOut, ...]
    """Those of other programs that cannot be read, each with the reason."""
    refused: tuple[LeftOut, ...]
    """Those that say they are of `foretune bench --share`, and are malformed or appear twice."""


def read_files(paths: Sequence[Path]) -> Reading:
    """The rows of all files. A shared measurement that appears twice counts once."""
    rows: list[Measurement] = []
    shared: dict[str, SharedRow] = {}
    left_out: list[LeftOut] = []
    refused: list[LeftOut] = []
    for path in paths:
        for number, values in enumerate(_table(path), start=1):
            name = _short(values.get("id")) or f"row {number} of {path.name}"
            if is_shared(values):
                try:
                    found = shared_row(values)
                except ValueError as error:
                    refused.append(_unreadable(name, values, str(error)))
                    continue
                if found.row_id in shared:
                    refused.append(_unreadable(name, values, "it appears twice"))
                shared.setdefault(found.row_id, found)
                continue
            try:
                rows.append(_row(values, number))
            except ValidationError as error:
                faults = "; ".join(
                    f"{'.'.join(map(str, f['loc'])) or 'the row'}: {f['msg']}" for f in error.errors()[:3]
                )
                left_out.append(_unreadable(name, values, faults))
    return Reading(tuple(rows), tuple(shared.values()), tuple(left_out), tuple(refused))


def read_rows(path: Path) -> tuple[tuple[Measurement, ...], tuple[LeftOut, ...]]:
    """The rows of other programs that can be read, and a reason for each that cannot."""
    found = read_files([path])
    return found.rows, found.left_out


def _unreadable(name: str, values: Mapping[str, str | None], faults: str) -> LeftOut:
    source = _short(values.get("framework")) or "unknown"
    return LeftOut(row_id=name, source=source, reason=f"{name} cannot be read: {shown(faults)[:_MOST_REASON]}")


def _short(text: str | None) -> str | None:
    """A stranger's text as a table shows it: one line, and not a long one."""
    return None if text is None else shown(text)[:_MOST_NAME]


def _table(path: Path) -> list[dict[str, str | None]]:
    """The cells of each row, those without text as None."""
    try:
        with open_input(path, _MOST_BYTES) as file:
            table = list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8-sig", newline="")))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV: {error}") from error
    lacking = [name for name in _FEWEST_COLUMNS if not table or name not in table[0]]
    if lacking:
        raise UserError(
            f"{path} has no column named {', '.join(lacking)}. It should have the columns of the catalogue's "
            "published_measurements.csv"
        )
    if len(table) > _MOST_ROWS:
        raise UserError(f"{path} has {len(table):,} rows; at most {_MOST_ROWS:,} are read. Split it.")
    return [
        {name: (cell or "").strip() or None for name, cell in cells.items() if name and not isinstance(cell, list)}
        for cells in table
    ]


def _row(cells: Mapping[str, str | None], number: int) -> Measurement:
    """Missing columns count as empty; a text where a number should be is kept as published."""
    known = {field.alias or name: name for name, field in PublishedRow.model_fields.items()}
    values: dict[str, Any] = {column: cells.get(column) for column in known if column != "as_published"}
    texts = {column: text for column in _NUMBERS if (text := values.get(column)) is not None and not _is_number(text)}
    values.update(dict.fromkeys(texts))
    values["id"] = values["id"] or f"row {number}"
    values["subset"] = values["subset"] or "other"
    values["gpu"] = values["gpu"] or "(not stated)"
    values["source"] = values["source"] or "not stated"
    values["fits"] = _verdict(values["fits"])
    for column in ("batch_per_gpu", "grad_accum", "frames", "n_gpus", "lora_rank"):
        if values[column] is not None and float(values[column]) == int(float(values[column])):
            values[column] = int(float(values[column]))
    _settle_peak(values)
    if values["speed"] is None or values["speed_unit"] is None:
        values.update(speed=None, speed_unit=None, samples_per_s_per_gpu=None)
    return PublishedRow.model_validate({**values, "as_published": texts})


_NUMBERS = (
    "params_b", "lora_rank", "batch_per_gpu", "grad_accum", "frames", "n_gpus", "gpu_mem_gb", "peak_mem", "speed",
    "samples_per_s_per_gpu",
)  # fmt: skip


def _is_number(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _verdict(text: str | None) -> str | None:
    words = (text or "").lower()
    if _OUT_OF_MEMORY.match(words):
        return "OOM"
    return "fits" if _FITS.match(words) else None


def _settle_peak(values: dict[str, Any]) -> None:
    """A peak needs a unit that is known, and words for what it is; without a unit it is no peak."""
    unit = (values["peak_mem_unit"] or "").lower()
    if values["peak_mem"] is not None and unit in _IN_GIB:
        values["peak_mem"] = float(values["peak_mem"]) * _IN_GIB[unit]
        unit = "gib"
    known = {"gib": "GiB", "gb": "GB", "gb(unspecified)": "GB(unspecified)", "mb": "MB"}
    if values["peak_mem"] is None or unit not in known:
        values.update(peak_mem=None, peak_mem_unit=None, peak_mem_kind=None, peak_bound=None)
        return
    values["peak_mem_unit"] = known[unit]
    values["peak_mem_kind"] = values["peak_mem_kind"] or "not stated"
    values["peak_bound"] = (values["peak_bound"] or "not stated").lower()
