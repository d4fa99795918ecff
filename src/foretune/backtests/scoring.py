"""The backtest: predicted against published, beside a trivial baseline, with nothing swept under."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from statistics import fmean, median
from typing import Any

from foretune.backtests.questions import BacktestQuestion, LeftOut
from foretune.core.values.plan import Verdict

OOM_CHANCE: Mapping[Verdict, float] = {"fits": 0.05, "tight": 0.5, "does not fit": 0.95}
"""How likely each verdict says that a run is to run out of memory. The band holds nine of ten peaks, so that one of
twenty is above it and one below; tight says nothing either way."""


@dataclass(frozen=True)
class Result:
    """One row with an exact peak."""

    asked: BacktestQuestion
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

    asked: BacktestQuestion
    fitted: bool
    verdict: Verdict


@dataclass(frozen=True)
class BacktestScore:
    """All of it."""

    results: tuple[Result, ...]
    fits: tuple[FitResult, ...]
    left_out: tuple[LeftOut, ...]
    """Rows of the backtest on peaks that cannot be asked."""
    num_exact: int
    """Rows that the backtest on peaks has."""
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

    def num_verdicts(self, verdict: Verdict, *, fitted: bool) -> int:
        return sum(row.verdict == verdict for row in self.with_fit(fitted=fitted))

    def tight_share(self, *, fitted: bool) -> float | None:
        """Of the rows that ran, or of those that did not, how many the plan does not decide."""
        rows = self.with_fit(fitted=fitted)
        return self.num_verdicts("tight", fitted=fitted) / len(rows) if rows else None

    @property
    def verdict_skill(self) -> float | None:
        """What the verdicts tell about a run, in bits: 1 is everything, 0 is nothing, below 0 they mislead.

        One less the logarithmic score of the chances in `OOM_CHANCE`, as the mean of its means over the rows that ran
        out of memory and over those that ran, which are many more. The score is proper, so that hedging never pays:
        calling every row tight has 0, refusing every row or none has -1.2.
        """
        ran, failed = self.with_fit(fitted=True), self.with_fit(fitted=False)
        if not ran or not failed:
            return None
        of_ran = fmean(1 + log2(1 - OOM_CHANCE[row.verdict]) for row in ran)
        return (of_ran + fmean(1 + log2(OOM_CHANCE[row.verdict]) for row in failed)) / 2

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
            "num_oom_refused": self.num_verdicts("does not fit", fitted=False),
            "num_oom_tight": self.num_verdicts("tight", fitted=False),
            "oom_tight_share": self.tight_share(fitted=False),
            "false_refusals": self.false_refusals,
            "num_fitting_rows": len(self.with_fit(fitted=True)),
            "num_fitting_refused": self.num_verdicts("does not fit", fitted=True),
            "num_fitting_tight": self.num_verdicts("tight", fitted=True),
            "fitting_tight_share": self.tight_share(fitted=True),
            "verdict_skill": self.verdict_skill,
            "num_not_judged": len(self.not_judged),
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
