"""Predicted against published step times, each row by constants that its own model had no part in."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from foretune.backtests.questions import LeftOut
from foretune.backtests.scoring import percentile
from foretune.backtests.speed_fit import OURS, ROOFLINE, TimeFormula, fit, leaving_out
from foretune.backtests.step_times import SpeedResult, has_speed, speed_question, speed_result
from foretune.catalog import Measurement
from foretune.planner.timing.constants import TimeConstants
from foretune.planner.timing.speed import NotKnown
from foretune.planner.timing.work_times import WorkTimes
from foretune.planner.traces import NotTraced, Traces

Key = Callable[[SpeedResult], Hashable]

_BF16 = "not quantised"


@dataclass(frozen=True)
class SpeedScore:
    """All of it. `ratios` are predicted over published times, in the order of the rows."""

    results: tuple[SpeedResult, ...]
    left_out: tuple[LeftOut, ...]
    ratios: tuple[float, ...]
    baseline_ratios: tuple[float, ...]
    device_out_ratios: tuple[float, ...]
    constants: TimeConstants
    """Fitted to all rows."""

    def errors(self) -> list[float]:
        return [abs(ratio - 1) for ratio in self.ratios]

    def as_dict(self) -> dict[str, Any]:
        """The figures, as `--json` prints them."""
        is_bound = [result.parts.seconds(self.constants).is_bound_by_device for result in self.results]
        speed = {
            **_figures(self.errors()),
            **{f"baseline_{name}": value for name, value in _figures(_absolute(self.baseline_ratios)).items()},
            "rank_correlation": rank_correlation(
                [result.question.published_s for result in self.results], self._predicted()
            ),
            "device_left_out": _figures(_absolute(self.device_out_ratios)),
            "bound_by_device": _figures(_chosen(self.errors(), is_bound)),
            "baseline_bound_by_device": _figures(_chosen(_absolute(self.baseline_ratios), is_bound)),
            "checkpointing_ratios": _figures(self.pair_errors(_checkpointing_pair)),
            "quantisation_ratios": _figures(self.pair_errors(_quantisation_pair)),
            "by_source": self._by(lambda result: result.question.asked.source),
            "by_model": self._by(lambda result: result.question.asked.model),
            "by_device": self._by(lambda result: result.question.device),
            "by_base": self._by(lambda result: result.question.base),
            "constants": self.constants.model_dump(),
        }
        return {
            "speed": speed,
            "speed_rows": [
                {
                    "id": result.question.asked.row_id,
                    "model": result.question.asked.model,
                    "device": result.question.device,
                    "published_s": result.question.published_s,
                    "predicted_s": predicted,
                    "bound_by": result.parts.seconds(self.constants).bound_by,
                }
                for result, predicted in zip(self.results, self._predicted(), strict=True)
            ],
            "speed_left_out": [{"id": row.row_id, "source": row.source, "reason": row.reason} for row in self.left_out],
        }

    def pair_errors(self, are_pair: Callable[[SpeedResult, SpeedResult], bool]) -> list[float]:
        """Of pairs of rows that differ in one choice: how far the predicted ratio is from the published one."""
        rows = list(zip(self.results, self.ratios, strict=True))
        return [abs(second / first - 1) for (a, first), (b, second) in _ordered(rows) if are_pair(a, b)]

    def _predicted(self) -> list[float]:
        return [ratio * result.question.published_s for result, ratio in zip(self.results, self.ratios, strict=True)]

    def _by(self, key: Key) -> dict[str, Any]:
        errors: dict[str, list[float]] = {}
        for result, error in zip(self.results, self.errors(), strict=True):
            errors.setdefault(str(key(result)), []).append(error)
        return {name: _figures(found) for name, found in sorted(errors.items())}


def speed_score(rows: Iterable[Measurement], traces: Traces) -> SpeedScore:
    """Every row is turned into a question, or a reason why not, before any is forecast."""
    asked = [(row, speed_question(row)) for row in rows if has_speed(row)]
    left_out = [question for _, question in asked if isinstance(question, LeftOut)]
    results, times = [], WorkTimes()
    for row, question in asked:
        if isinstance(question, LeftOut):
            continue
        try:
            results.append(speed_result(question, traces, times))
        except (NotTraced, NotKnown) as error:
            left_out.append(LeftOut(row_id=row.id, source=row.framework, reason=str(error)))
    return scored(results, left_out)


def scored(results: Sequence[SpeedResult], left_out: Sequence[LeftOut] = ()) -> SpeedScore:
    """Fits the constants, for each row without those of its model; and once more without those of its device."""

    def ratios(form: TimeFormula, key: Key) -> tuple[float, ...]:
        return tuple(leaving_out(form, results, key))

    products, host = fit(OURS, results) if results else OURS.start
    return SpeedScore(
        results=tuple(results),
        left_out=tuple(left_out),
        ratios=ratios(OURS, _model),
        baseline_ratios=ratios(ROOFLINE, _model),
        device_out_ratios=ratios(OURS, lambda result: result.question.device),
        constants=TimeConstants(products=products, host=host),
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's; equal values share their ranks."""
    if len(first) < 3:  # noqa: PLR2004 - two always agree or disagree
        return None
    a, b = _ranks(first), _ranks(second)
    mean = (len(a) + 1) / 2
    both = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spread = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return both / spread**0.5 if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    counts, ordered = Counter(values), sorted(values)
    first = {value: ordered.index(value) + 1 for value in counts}
    return [first[value] + (counts[value] - 1) / 2 for value in values]


def _model(result: SpeedResult) -> Hashable:
    return result.question.asked.model


def _ordered(
    rows: Sequence[tuple[SpeedResult, float]],
) -> Iterable[tuple[tuple[SpeedResult, float], tuple[SpeedResult, float]]]:
    for first, second in combinations(rows, 2):
        yield first, second
        yield second, first


def _checkpointing_pair(plain: SpeedResult, other: SpeedResult) -> bool:
    """The second checkpoints what the first does not; all else is equal."""
    a, b = plain.question, other.question
    share = (a.asked.experiment.levers.gradient_checkpointing, b.asked.experiment.levers.gradient_checkpointing)
    return share[0] == 0 < share[1] and _besides(a.base, plain) == _besides(b.base, other)


def _quantisation_pair(plain: SpeedResult, other: SpeedResult) -> bool:
    a, b = plain.question, other.question
    is_quantised = a.base == _BF16 != b.base
    return is_quantised and _besides(a.checkpointing, plain) == _besides(b.checkpointing, other)


def _besides(what: str, result: SpeedResult) -> tuple[Hashable, ...]:
    question = result.question
    asked = question.asked
    return (what, asked.source, asked.model, asked.sizes, question.device, question.num_passes, _offload(result))


def _offload(result: SpeedResult) -> bool:
    return result.question.asked.experiment.levers.activation_offload


def _absolute(ratios: Sequence[float]) -> list[float]:
    return [abs(ratio - 1) for ratio in ratios]


def _chosen(errors: Sequence[float], is_chosen: Sequence[bool]) -> list[float]:
    return [error for error, chosen in zip(errors, is_chosen, strict=True) if chosen]


def _figures(errors: Sequence[float]) -> dict[str, Any]:
    return {
        "num_rows": len(errors),
        "median_abs_error": median(errors) if errors else None,
        "p90_abs_error": percentile(errors, 0.9),
    }
