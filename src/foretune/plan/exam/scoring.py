"""The exam: predicted against published, beside a trivial baseline, with nothing swept under."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from foretune.catalog import Measurement
from foretune.core.values.plan import Verdict
from foretune.plan.exam.baseline import baseline_bytes
from foretune.plan.exam.forecasting import Forecast, LastEvents, forecast
from foretune.plan.exam.questions import LeftOut, Question
from foretune.plan.exam.rows import is_exact, question
from foretune.plan.traces import NotTraced, Traces


@dataclass(frozen=True)
class Result:
    """One row with an exact peak."""

    asked: Question
    published_bytes: int
    peak: str
    predicted_bytes: int
    baseline_bytes: int

    @property
    def error(self) -> float:
        """Predicted over published, less one: 0.02 is 2 % too high."""
        return self.predicted_bytes / self.published_bytes - 1

    @property
    def baseline_error(self) -> float:
        return self.baseline_bytes / self.published_bytes - 1


@dataclass(frozen=True)
class FitResult:
    """One row of which it is known whether it ran."""

    asked: Question
    fitted: bool
    verdict: Verdict


@dataclass(frozen=True)
class Score:
    """All of it."""

    results: tuple[Result, ...]
    fits: tuple[FitResult, ...]
    left_out: tuple[LeftOut, ...]
    """Rows of the exam on peaks that cannot be asked."""
    num_exact: int
    """Rows that the exam on peaks has."""
    not_judged: tuple[LeftOut, ...] = ()
    """Rows of which only is known whether they ran, and whose step is not traced."""

    def errors(self, *, peak: str | None = None, base: str | None = None) -> list[float]:
        """Without signs, from the smallest; of one kind of peak or of one kind of base, if asked."""
        chosen = (r for r in self.results if peak in (None, r.peak) and base in (None, r.asked.base))
        return sorted(abs(result.error) for result in chosen)

    def with_fit(self, *, fitted: bool) -> list[FitResult]:
        return [result for result in self.fits if result.fitted is fitted]

    @property
    def oom_recall(self) -> float | None:
        """Share of the rows that ran out of memory of which the plan does not say that they fit."""
        rows = self.with_fit(fitted=False)
        return sum(row.verdict != "fits" for row in rows) / len(rows) if rows else None

    @property
    def false_refusals(self) -> float | None:
        """Share of the rows that ran of which the plan says that they do not fit."""
        rows = self.with_fit(fitted=True)
        return sum(row.verdict == "does not fit" for row in rows) / len(rows) if rows else None

    def as_dict(self) -> dict[str, Any]:
        """The figures, as `--json` prints them."""
        errors, baseline = self.errors(), sorted(abs(result.baseline_error) for result in self.results)
        memory: dict[str, Any] = {
            "num_rows": len(errors),
            "num_exact_rows": self.num_exact,
            "median_abs_error": median(errors) if errors else None,
            "p90_abs_error": percentile(errors, 0.9),
            "baseline_median_abs_error": median(baseline) if baseline else None,
            "baseline_p90_abs_error": percentile(baseline, 0.9),
            "oom_recall": self.oom_recall,
            "num_oom_rows": len(self.with_fit(fitted=False)),
            "num_oom_refused": sum(row.verdict == "does not fit" for row in self.with_fit(fitted=False)),
            "num_oom_tight": sum(row.verdict == "tight" for row in self.with_fit(fitted=False)),
            "false_refusals": self.false_refusals,
            "num_fitting_rows": len(self.with_fit(fitted=True)),
            "num_fitting_refused": sum(row.verdict == "does not fit" for row in self.with_fit(fitted=True)),
            "num_not_judged": len(self.not_judged),
            "num_fitting_tight": sum(row.verdict == "tight" for row in self.with_fit(fitted=True)),
        }
        for peak in ("allocated", "reserved", "process"):
            memory[peak] = _figures(self.errors(peak=peak))
        bases = sorted({result.asked.base for result in self.results})
        memory["by_base"] = {base: _figures(self.errors(base=base)) for base in bases}
        return {
            "memory": memory,
            "rows": [_row_dict(result) for result in self.results],
            "fits": [
                {"id": row.asked.row_id, "fitted": row.fitted, "verdict": row.verdict, "device": row.asked.device}
                for row in self.fits
            ],
            "left_out": [{"id": row.row_id, "source": row.source, "reason": row.reason} for row in self.left_out],
        }


def _figures(errors: list[float]) -> dict[str, Any]:
    return {
        "num_rows": len(errors),
        "median_abs_error": median(errors) if errors else None,
        "p90_abs_error": percentile(errors, 0.9),
    }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of them does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def sit_exam(
    rows: Iterable[Measurement],
    traces: Callable[[str], Traces],
    unreadable: Sequence[LeftOut] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> Score:
    """Every row is turned into a question, or a reason why not, before any is forecast."""
    # Rows of a file may have the same id, so each goes with its own question.
    asked = [(row, question(row)) for row in rows]
    left_out = [*unreadable, *(found for row, found in asked if is_exact(row) and isinstance(found, LeftOut))]
    results, fits, not_judged = [], [], list[LeftOut]()
    last = LastEvents()
    for number, (row, one) in enumerate(asked):
        if isinstance(one, LeftOut):
            continue
        if progress is not None:
            progress(one.model, number, len(asked))
        wants_peak = is_exact(row) and one.published is not None
        wants_fit = one.fitted is not None and one.device_bytes is not None
        if not wants_peak and not wants_fit:
            continue
        try:
            said = forecast(one, traces(one.model), last)
        except NotTraced as error:
            found = LeftOut(row_id=one.row_id, source=one.source, reason=str(error))
            (left_out if wants_peak else not_judged).append(found)
            continue
        if wants_peak:
            results.append(_result(one, said))
        if wants_fit and said.verdict is not None:
            fits.append(FitResult(one, bool(one.fitted), said.verdict))
    num_exact = sum(is_exact(row) for row, _ in asked)
    return Score(tuple(results), tuple(fits), tuple(left_out), num_exact, tuple(not_judged))


def _result(asked: Question, said: Forecast) -> Result:
    assert asked.published is not None
    return Result(
        asked=asked,
        published_bytes=asked.published.num_bytes,
        peak=asked.published.peak,
        predicted_bytes=said.of(asked.published.peak),
        baseline_bytes=baseline_bytes(asked),
    )


def _row_dict(result: Result) -> dict[str, Any]:
    return {
        "id": result.asked.row_id,
        "source": result.asked.source,
        "model": result.asked.model,
        "base": result.asked.base,
        "peak": result.peak,
        "published_bytes": result.published_bytes,
        "predicted_bytes": result.predicted_bytes,
        "error": result.error,
        "baseline_error": result.baseline_error,
        "assumptions": list(result.asked.assumptions),
    }
