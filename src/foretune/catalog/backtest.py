"""The last backtest: how far plans were from published peaks, which is what the band of a plan promises."""

import json
from datetime import date
from functools import cache
from math import ceil
from typing import Any

from pydantic import Field

from foretune.catalog.rows import DATA_DIR, Row

RECORD_FILE = DATA_DIR / "backtest_record.json"


class WithoutInference(Row):
    """The figures if one statement about a program had not been inferred from its published figures."""

    program: str
    statement: str
    because: str
    num_changed: int
    """Rows whose forecast changes, or that are read differently."""
    num_lost: int
    """Rows that could not be asked then."""
    num_rows: int
    median_abs_error: float
    p90_abs_error: float
    changed_median_abs_error: float | None
    """Of the rows that change; None where all of them are lost."""


class BacktestRecord(Row):
    """What `foretune backtest` said about the catalogue, as `python -m tools.backtest_record` wrote it down."""

    made_on: date
    made_with: dict[str, str]
    memory: dict[str, Any]
    """The figures, as `foretune backtest --json` has them."""
    error_by_row: dict[str, float]
    """Predicted over published less one, of every row with an exact peak that was asked."""
    num_pairs: int
    """Published pairs that differ in one choice."""
    num_pairs_right: int
    """Of those, how many the plan changes in the same direction."""
    without: tuple[WithoutInference, ...] = Field(min_length=1)

    @property
    def num_rows(self) -> int:
        return len(self.error_by_row)

    @property
    def error_band(self) -> float:
        """The share that nine of ten peaks are within in every group of rows, up to the next tenth of a percent.

        The groups are the kinds of peak and the bases: a plan is for one of them, and which of them were published most
        often should not narrow its band.
        """
        peaks = (self.memory[peak] for peak in ("allocated", "reserved", "process"))
        groups = (self.memory, *peaks, *self.memory["by_base"].values())
        largest: float = max(one["p90_abs_error"] for one in groups if one["p90_abs_error"] is not None)
        return ceil(largest * 1000) / 1000


@cache
def backtest_record() -> BacktestRecord:
    """The record that ships with the package."""
    return BacktestRecord.model_validate(json.loads(RECORD_FILE.read_text(encoding="utf-8")))
