"""Whether a candidate is slower than a baseline by more than is allowed: pass, fail, or not known.

Two ratios are judged: that of the typical step, and that of all time over all steps. The first is the finer one,
because a few long steps do not move it; the second is there because a few long steps are a slowdown, too.
"""

import math
from dataclasses import dataclass, replace
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


def judge(
    step_time: Decision,
    max_slowdown: float,
    *,
    speed: Decision | None = None,
    num_unfinished: int = 0,
    is_strict: bool = False,
) -> GateAnswer:
    """Judges the ratio of step times, candidate to baseline; that of speeds, where it is given; and failed candidates.

    A slowdown fails when the whole interval is beyond the limit. It passes when the interval ends before the limit;
    or, unless strict, when the measured ratio is within the limit and twice the limit is excluded. The time of all
    steps fails it, too, and keeps it from passing where its measured ratio is beyond the limit or, if strict, where its
    interval is. A candidate of which `num_unfinished` runs did not finish never passes: nobody knows their speed.
    """
    answer = _judged(step_time, "a typical step", max_slowdown, is_strict=is_strict)
    if speed is not None and answer.verdict != "slower":
        whole = _judged(_inverse(speed), "all steps together", max_slowdown, is_strict=is_strict)
        is_beyond = is_strict or (speed.ratio is not None and 1 / speed.ratio > 1 + max_slowdown)
        if whole.verdict == "slower" or (answer.verdict == "pass" and is_beyond):
            answer = whole
    if num_unfinished and answer.verdict == "pass":
        runs = "1 run" if num_unfinished == 1 else f"{num_unfinished} runs"
        reason = f"{runs} of the candidate did not finish; the others are {answer.reason}"
        return GateAnswer("inconclusive", reason, None)
    return answer


def _judged(ratio: Decision, of: str, max_slowdown: float, *, is_strict: bool) -> GateAnswer:
    limit = 1 + max_slowdown
    if ratio.ratio is None or ratio.low is None or ratio.high is None:
        why = "; ".join(ratio.warnings) or "there is no steady step time on both sides"
        return GateAnswer("inconclusive", f"there is no interval: {why}", None)
    span = f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"
    measured = f"{of} measured {ratio.ratio - 1:+.1%} ({span}), allowed {max_slowdown:+.1%}"
    if ratio.low > limit:
        return GateAnswer("slower", f"slower than allowed: {measured}", None)
    if ratio.high <= limit:
        return GateAnswer("pass", f"no slower than allowed: {measured}", None)
    if not is_strict and ratio.ratio <= limit and ratio.high <= 1 + 2 * max_slowdown:
        return GateAnswer("pass", f"no slowdown beyond the limit was shown, nor one excluded: {measured}", None)
    return GateAnswer("inconclusive", f"too few or too different runs to decide: {measured}", _num_more(ratio, limit))


def _inverse(speed: Decision) -> Decision:
    """The ratio of times from that of speeds."""
    if speed.ratio is None or speed.low is None or speed.high is None:
        return replace(speed, ratio=None, low=None, high=None)
    return replace(speed, ratio=1 / speed.ratio, low=1 / speed.high, high=1 / speed.low)


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
