"""The recorded runs that comparisons are proved on."""

import json
from pathlib import Path
from typing import Literal

Condition = Literal["quiet", "beside hogs"]

CONDITIONS: tuple[Condition, ...] = ("quiet", "beside hogs")
RUNS = Path(__file__).parent / "data" / "h1_runs.json"


def recorded_runs(condition: Condition, path: Path = RUNS) -> list[list[float]]:
    """Raw step times, one list a fresh process, in the order they were recorded."""
    runs = json.loads(path.read_text(encoding="utf-8"))
    unknown = {run["condition"] for run in runs} - set(CONDITIONS)
    assert not unknown, f"no such conditions: {unknown}"
    return [[float(time_s) for time_s in run["step_times_s"]] for run in runs if run["condition"] == condition]
