"""The two numbers of step times that are learnt from published speeds, and how good the times were."""

import json
from datetime import date
from functools import cache
from typing import Any

from pydantic import Field

from foretune.catalog.rows import DATA_DIR
from foretune.core.values.base import Part
from foretune.planner.timing.speed import Evidence

SPEED_RECORD_FILE = DATA_DIR / "speed_record.json"


class TimeConstants(Part):
    """Factors for what tables and data sheets give."""

    products: float = Field(gt=0)
    """Time of a matrix product within a training, over its time in a short burst on a cool device."""
    host: float = Field(gt=0)
    """Time of the host for each operator, with the model's own Python, over that of the operator alone."""
    device: float = Field(default=1.0, gt=0)
    """Time of all kernels. Only the backtest of many devices learns it, for a program that it has no other rows of."""


class SpeedRecord(Part):
    """What `foretune backtest` said about published speeds, as `python -m tools.speed_record` recorded it."""

    date: date
    speed: dict[str, Any]
    """The figures, as `foretune backtest --json` has them: each row's model was left out of the fit for its error."""
    ratio_by_row: dict[str, float]
    """Predicted over published time."""

    @property
    def p90_error(self) -> float:
        return float(self.speed["p90_abs_error"])

    @property
    def constants(self) -> TimeConstants:
        """Fitted to all rows."""
        return TimeConstants.model_validate(self.speed["constants"])


@cache
def speed_record() -> SpeedRecord:
    """The record that ships with the package."""
    return SpeedRecord.model_validate(json.loads(SPEED_RECORD_FILE.read_text(encoding="utf-8")))


AS_MEASURED = TimeConstants(products=1, host=1)
"""On a CPU, calibration measures kernels and operators as a training runs them: one after another, on warm cores."""


def shipped_constants() -> TimeConstants:
    return speed_record().constants


_BEYOND_THE_ROWS = 1.5
"""All rows are of devices with kernel tables; the data sheet alone is about half again as wrong at single kernels."""


def time_error(evidence: Evidence) -> float:
    """Predicted over published time, less one: what nine of ten published rows do not exceed, either way."""
    p90 = speed_record().p90_error
    return p90 * _BEYOND_THE_ROWS if evidence == "data sheet" else p90
