"""Whether a candidate is slower than a baseline by more than is allowed: pass, fail, or not known."""

import math
from dataclasses import dataclass
from typing import Literal

from foretune.stats.deciding import Decision, more_repeats
from foretune.stats.student import student_quantile

Verdict = Literal["pass", "slower", "inconclusive"]

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "slower": 1, "inconclusive": 3}
"""2 is for what the user mistyped, and for runs that cannot be compared."""


@dataclass(frozen=True)
class GateAnswer:
    """What the gate says, with the sentence behind it."""

    verdict: Verdict
    reason: str
    num_more: int | None
    """About how many more runs of each side would settle it; None where it is settled, or nobody can tell."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


def judge(step_time: Decision, max_slowdown: float, *, is_strict: bool = False) -> GateAnswer:
    """Judges the ratio of step times, candidate to baseline.

    A slowdown fails when the whole interval is beyond the limit. It passes when the interval ends before the limit;
    or, unless strict, when the measured ratio is within the limit and twice the limit is excluded.
    """
    limit = 1 + max_slowdown
    if step_time.ratio is None or step_time.low is None or step_time.high is None:
        why = "; ".join(step_time.warnings) or "there is no steady step time on both sides"
        return GateAnswer("inconclusive", f"there is no interval: {why}", None)
    span = f"{step_time.low - 1:+.1%} to {step_time.high - 1:+.1%}"
    measured = f"measured {step_time.ratio - 1:+.1%} ({span}), allowed {max_slowdown:+.1%}"
    if step_time.low > limit:
        return GateAnswer("slower", f"slower than allowed: {measured}", None)
    if step_time.high <= limit:
        return GateAnswer("pass", f"no slower than allowed: {measured}", None)
    if not is_strict and step_time.ratio <= limit and step_time.high <= 1 + 2 * max_slowdown:
        return GateAnswer("pass", f"no slowdown beyond the limit was shown, nor one excluded: {measured}", None)
    return GateAnswer("inconclusive", f"too few or too unlike runs to tell: {measured}", _num_more(step_time, limit))


def _num_more(step_time: Decision, limit: float) -> int:
    """Runs until the interval is short enough to lie on one side of the limit, if the ratio stays as it is."""
    assert step_time.ratio is not None, "asked for measured ratios only"
    assert step_time.low is not None, "asked for measured ratios only"
    num_runs = min(step_time.num_a, step_time.num_b)
    probability = (1 + step_time.confidence) / 2
    reach = math.log(step_time.ratio / step_time.low)
    error = reach / student_quantile(probability, max(2 * (num_runs - 1), 1))
    # A ratio that is the limit itself is never settled; a quarter of the limit is as fine as anybody asks.
    distance = max(abs(math.log(step_time.ratio / limit)), math.log(limit) / 4)
    return more_repeats(error, num_runs, distance, step_time.confidence)
