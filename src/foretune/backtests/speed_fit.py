"""The constants of step times, learnt from published rows; and a crude roofline with constants of its own beside it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from foretune import catalog
from foretune.backtests.step_times import SpeedResult
from foretune.planner.timing.constants import TimeConstants

Vector = tuple[float, ...]
Predict = Callable[[Vector, SpeedResult], float]
"""Seconds of a row with these constants."""

_MOST_COUNTED = 0.5
"""An error counts up to this factor (in its logarithm): rows that nothing explains should not bend the others."""
_STEPS = (0.4, 0.15, 0.05, 0.02)
"""Of the search, in logarithms."""


@dataclass(frozen=True)
class TimeFormula:
    """A formula for the time of a step, and constants to start the search from."""

    predict: Predict
    start: Vector


def _ours(constants: Vector, row: SpeedResult) -> float:
    products, host = constants
    return row.parts.seconds(TimeConstants(products=products, host=host)).step_s


def _roofline(constants: Vector, row: SpeedResult) -> float:
    """Everything at a share of the data sheet: what a spreadsheet would do."""
    of_products, of_attention, of_bandwidth, operator_s, checkpointing, sharpness = constants
    total, device = row.parts.total, catalog.device(row.question.device)
    peak, bandwidth = (device.bf16_dense_tflops or 0.0) * 1e12, (device.bandwidth_gb_per_s or 0.0) * 1e9
    attention = total.attention_flops
    products = total.model_flops + total.recomputed_flops - attention
    device_s = (products / of_products + attention / of_attention) / peak + total.num_bytes / of_bandwidth / bandwidth
    host_s = operator_s * total.num_operators * (checkpointing if total.num_recomputing else 1.0)
    shorter_s, longer_s = sorted((device_s, host_s))
    return float(longer_s * (1 + (shorter_s / longer_s) ** sharpness) ** (1 / sharpness))


OURS = TimeFormula(_ours, (1.0, 2.0))
ROOFLINE = TimeFormula(_roofline, (0.70, 0.35, 0.85, 1e-5, 1.4, 3.0))
"""Six constants."""


def ratio(form: TimeFormula, constants: Vector, row: SpeedResult) -> float:
    """Predicted over published time."""
    return form.predict(constants, row) / row.question.published_s


def fit(form: TimeFormula, rows: Sequence[SpeedResult]) -> Vector:
    """The constants with the least mean error: one after another, in ever smaller steps."""

    def loss(constants: Vector) -> float:
        return fmean(min(abs(log(ratio(form, constants, row))), _MOST_COUNTED) for row in rows)

    best = form.start
    least = loss(best)
    for step in _STEPS:
        is_better = True
        while is_better:
            is_better = False
            for index in range(len(best)):
                for factor in (exp(step), exp(-step)):
                    tried = (*best[:index], best[index] * factor, *best[index + 1 :])
                    found = loss(tried)
                    if found < least - 1e-9:
                        best, least, is_better = tried, found, True
    return best


def leaving_out(form: TimeFormula, rows: Sequence[SpeedResult], key: Callable[[SpeedResult], Hashable]) -> list[float]:
    """Predicted over published time of each row, by constants that no row with its key was used for."""
    by_key: dict[Hashable, Vector] = {}
    for value in dict.fromkeys(map(key, rows)):
        others = [row for row in rows if key(row) != value]
        by_key[value] = fit(form, others) if others else form.start
    return [ratio(form, by_key[key(row)], row) for row in rows]
