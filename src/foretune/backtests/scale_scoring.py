"""The figures of published speeds on several devices."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from foretune.backtests.questions import LeftOut
from foretune.backtests.scale import (
    ScaleForecasts,
    ScaleQuestion,
    ScaleResult,
    is_of_scale,
    median_errors,
    scale_question,
    scale_results,
    where_the_count_grows,
)
from foretune.catalog import Measurement
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.traces import Traces


@dataclass(frozen=True)
class ScaleScore:
    """All rows, FLUX on AMD's cards included."""

    results: tuple[ScaleResult, ...]
    left_out: tuple[LeftOut, ...]

    def as_dict(self) -> dict[str, Any]:
        """The figures, as `--json` prints them. Errors are of samples/s per device."""
        every, growing = median_errors(self.results), median_errors(where_the_count_grows(self.results))
        return {
            "scale": {
                **asdict(every["from_nothing"]),
                "all_forecasts": {name: asdict(error) for name, error in every.items()},
                "where_the_count_grows": {name: asdict(error) for name, error in growing.items()},
            },
            "scale_rows": [
                {
                    "id": one.asked.row_id,
                    "model": one.asked.model,
                    "device": one.asked.device.name,
                    "num_devices": one.asked.num_devices,
                    "published_samples_per_s": one.asked.published,
                    "error": one.from_nothing,
                }
                for one in self.results
            ],
            "scale_left_out": [{"id": row.row_id, "source": row.source, "reason": row.reason} for row in self.left_out],
        }


def scale_score(rows: Iterable[Measurement], traces: Traces) -> ScaleScore:
    """Every row is turned into a question, or a reason why not, before any is forecast."""
    asked = [scale_question(row) for row in rows if is_of_scale(row)]
    questions = [one for one in asked if isinstance(one, ScaleQuestion)]
    return ScaleScore(
        results=tuple(scale_results(questions, ScaleForecasts(traces, speed_of))),
        left_out=tuple(one for one in asked if isinstance(one, LeftOut)),
    )
