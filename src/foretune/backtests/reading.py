"""Reading a file of published measurements that is not the catalogue's: same columns, any words.

The catalogue's own reader knows every word that its file may hold and stops at any other; here a row that cannot be
understood is left out with the reason, and the others are read.
"""

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from foretune.backtests.questions import LeftOut
from foretune.catalog import Measurement
from foretune.core.errors import UserError
from foretune.core.input_files import open_input

_MOST_BYTES = 64 * 2**20
_FEWEST_COLUMNS = ("id", "task", "model", "method", "framework")
_OUT_OF_MEMORY = re.compile(r"(oom|out of memory|no|does not fit|fails?)\b")
_FITS = re.compile(r"(fits|yes|ok|ran)\b")
_IN_GIB = {"mib": 1 / 1024, "kib": 1 / 2**20, "b": 1 / 2**30, "bytes": 1 / 2**30}


class PublishedRow(Measurement):
    """A row of any file: ids, sources and words are the file's own."""

    id: str
    subset: str  # type: ignore[assignment]
    source_commit: str | None


def read_rows(path: Path) -> tuple[tuple[Measurement, ...], tuple[LeftOut, ...]]:
    """The rows that can be read, and a reason for each that cannot."""
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
    rows: list[Measurement] = []
    left_out: list[LeftOut] = []
    for number, cells in enumerate(table, start=1):
        values = {
            name: (cell or "").strip() or None for name, cell in cells.items() if name and not isinstance(cell, list)
        }
        try:
            rows.append(_row(values, number))
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, f['loc'])) or 'the row'}: {f['msg']}" for f in error.errors()[:3])
            name = values.get("id") or f"row {number}"
            left_out.append(
                LeftOut(row_id=name, source=values.get("framework") or "unknown", reason=f"cannot be read: {faults}")
            )
    return tuple(rows), tuple(left_out)


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
