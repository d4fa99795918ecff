"""The plan judged on shared measurements: forecast beside measured beside a trivial baseline, row by row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from foretune.backtests.questions import LeftOut
from foretune.backtests.scoring import percentile
from foretune.backtests.shared.forecasting import (
    StepsQuestion,
    baseline_bytes,
    baseline_step_s,
    forecast_steps,
    question_of,
)
from foretune.backtests.shared.row_format import SharedPlan, SharedRow
from foretune.core.errors import UserError
from foretune.planner.asking import LiveSource

_NO_SPEED = (
    "step time: the catalogue has no speed of its device, and the row brings no forecast. Before a bench, run: "
    "foretune calibrate"
)
Forecaster = Callable[[StepsQuestion], SharedPlan]
Origin = Literal["now", "then"]
"""Whether this release forecast it, or the one that measured; a row keeps the latter."""


@dataclass(frozen=True, kw_only=True)
class RowComparison:
    """A measured figure beside what was forecast, and what a rule of thumb gives. Bytes, or seconds of a step."""

    row: SharedRow
    measured: float
    low: float | None
    """Of the 95 % interval, as the next; None where there is none."""
    high: float | None
    planned: float
    planned_low: float
    planned_high: float
    baseline: float | None
    origin: Origin

    @property
    def error(self) -> float:
        """Planned over measured, less one."""
        return self.planned / self.measured - 1

    @property
    def baseline_error(self) -> float | None:
        return None if self.baseline is None else self.baseline / self.measured - 1

    @property
    def is_in_band(self) -> bool:
        """Whether the measurement's interval and the plan's band have a value in common."""
        low = self.measured if self.low is None else self.low
        high = self.measured if self.high is None else self.high
        return low <= self.planned_high and high >= self.planned_low

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.row.row_id,
            "model": self.row.model,
            "device": self.row.environment.device,
            **{name: getattr(self, name) for name in ("measured", "low", "high")},
            **{name: getattr(self, name) for name in ("planned", "planned_low", "planned_high")},
            "planned_by": self.origin,
            "error": self.error,
            "is_in_band": self.is_in_band,
            "baseline": self.baseline,
            "baseline_error": self.baseline_error,
        }


@dataclass(frozen=True)
class SharedScore:
    """All of it."""

    memory: tuple[RowComparison, ...]
    speed: tuple[RowComparison, ...]
    not_forecast: tuple[LeftOut, ...]
    """Rows without a forecast of memory or of speed, and why."""
    refused: tuple[LeftOut, ...] = ()
    """Rows that could not be read, and why."""

    def as_dict(self) -> dict[str, Any]:
        """The figures, as `--json` prints them."""
        return {
            "shared": {"memory": _figures(self.memory), "speed": _figures(self.speed)},
            "shared_memory_rows": [one.as_dict() for one in self.memory],
            "shared_speed_rows": [one.as_dict() for one in self.speed],
            "shared_not_forecast": [{"id": one.row_id, "reason": one.reason} for one in self.not_forecast],
            "shared_refused": [{"id": one.row_id, "reason": one.reason} for one in self.refused],
        }


def forecaster(live: LiveSource | None = None) -> Forecaster:
    """Forecasts with the traces of the package, or those that `live` records."""
    return lambda question: forecast_steps(question, live, as_measured_here=live is not None)


def score_shared(rows: Sequence[SharedRow], forecast: Forecaster, refused: Sequence[LeftOut] = ()) -> SharedScore:
    """Asks the plan about every row; what it cannot answer is judged by the forecast that the row brings."""
    memory, speed, without = [], [], list[LeftOut]()
    for row in rows:
        planned, why = _forecast(row, forecast)
        held = planned or row.plan
        if held is None:
            without.append(_left_out(row, f"memory: {why}; the row brings no forecast"))
        elif _held_bytes(row) is None:
            without.append(_left_out(row, "memory: it was not measured"))
        else:
            memory.append(_memory(row, held, "then" if planned is None else "now"))
        timed, origin = (planned, "now") if planned is not None and planned.step_s is not None else (row.plan, "then")
        if timed is None or timed.step_s is None:
            without.append(_left_out(row, _NO_SPEED))
        else:
            speed.append(_speed(row, timed, "now" if origin == "now" else "then"))
    return SharedScore(tuple(memory), tuple(speed), tuple(without), tuple(refused))


def _forecast(row: SharedRow, forecast: Forecaster) -> tuple[SharedPlan | None, str]:
    if not row.is_listed:
        return None, "the model is not in the catalogue"
    try:
        return forecast(question_of(row)), ""
    except UserError as error:
        return None, str(error)


def _left_out(row: SharedRow, reason: str) -> LeftOut:
    return LeftOut(row_id=row.row_id, source="foretune", reason=reason)


def _is_on_host(row: SharedRow) -> bool:
    return row.environment.device_kind == "cpu"


def _held_bytes(row: SharedRow) -> int | None:
    """Of a device what its allocator reserved; of a CPU the whole process."""
    measured = row.measured
    return measured.process_bytes if _is_on_host(row) else measured.reserved_bytes or measured.allocated_bytes


def _memory(row: SharedRow, plan: SharedPlan, origin: Origin) -> RowComparison:
    measured, held, on_host = row.measured, _held_bytes(row), _is_on_host(row)
    assert held is not None, "only measured memory is compared"
    is_allocated = not on_host and measured.reserved_bytes is None
    likely = plan.process_bytes if on_host else plan.allocated_bytes if is_allocated else plan.reserved_bytes
    # The band is that of the process; what of it the allocator does not hold is the same at both ends.
    beside = plan.process_bytes - likely
    return RowComparison(
        row=row,
        measured=float(held),
        low=None,
        high=None,
        planned=float(likely),
        planned_low=float(plan.process_low_bytes - beside),
        planned_high=float(plan.process_high_bytes - beside),
        baseline=float(baseline_bytes(row.experiment, measured)),
        origin=origin,
    )


def _speed(row: SharedRow, plan: SharedPlan, origin: Origin) -> RowComparison:
    assert plan.step_s is not None, "only plans with a time are compared"
    measured = row.measured
    return RowComparison(
        row=row,
        measured=measured.step_s,
        low=measured.step_low_s,
        high=measured.step_high_s,
        planned=plan.step_s,
        planned_low=plan.step_low_s or plan.step_s,
        planned_high=plan.step_high_s or plan.step_s,
        baseline=baseline_step_s(measured),
        origin=origin,
    )


def _figures(found: Sequence[RowComparison]) -> dict[str, Any]:
    errors = [abs(one.error) for one in found]
    baseline = [abs(error) for one in found if (error := one.baseline_error) is not None]
    return {
        "num_rows": len(found),
        "num_in_band": sum(one.is_in_band for one in found),
        "median_abs_error": median(errors) if errors else None,
        "p90_abs_error": percentile(errors, 0.9),
        "num_baseline_rows": len(baseline),
        "baseline_median_abs_error": median(baseline) if baseline else None,
        "baseline_p90_abs_error": percentile(baseline, 0.9),
    }
