"""Whether two things differ, and which is higher: an answer that knows what it cannot say.

Each side is one number a run. Ratios are compared, so the work is done on logarithms: a ratio and its inverse then
have mirrored intervals.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foretune.stats.student import student_quantile

Answer = Literal["a is higher", "b is higher", "no difference shown", "inconclusive"]

DECIDING_CONFIDENCE = 0.97
"""A winner is named wrongly in about 3 of 100 comparisons of a thing with itself."""
SMALLEST_DIFFERENCE = 0.03
""""No difference shown" is said only where a difference of this share or more would have been."""
_FEW_RUNS = 5
_MOST_REPEATS = 100_000


@dataclass(frozen=True)
class Decision:
    """How b relates to a."""

    ratio: float | None
    """b divided by a; None where there was too little to say."""
    low: float | None
    high: float | None
    confidence: float
    answer: Answer
    num_a: int
    num_b: int
    num_more: int | None
    """About how many more runs of each would show a difference of the size asked about; None where none are needed,
    or where there are too few to tell."""
    warnings: tuple[str, ...] = ()


def decide(
    a: Sequence[float],
    b: Sequence[float],
    *,
    is_paired: bool = False,
    confidence: float = DECIDING_CONFIDENCE,
    smallest_difference: float = SMALLEST_DIFFERENCE,
    names: tuple[str, str] = ("a", "b"),
) -> Decision:
    """The ratio b / a of two sets of runs, each run one positive number, with its interval and the answer.

    `is_paired` is for runs that were made in turns (a, b, a, b, ...): what slowly changes on a machine then changes
    both of a pair alike and drops out. `names` are what warnings call the sides.
    """
    usable_a, usable_b = _usable(a), _usable(b)
    warnings = _warnings((a, b), (usable_a, usable_b), names)
    if not usable_a or not usable_b:
        return Decision(
            None, None, None, confidence, "inconclusive", len(usable_a), len(usable_b), None, tuple(warnings)
        )
    logs_a, logs_b = [math.log(value) for value in usable_a], [math.log(value) for value in usable_b]
    if is_paired and len(usable_a) == len(a) == len(usable_b) == len(b):
        spread = _paired_spread(logs_a, logs_b)
    else:
        spread = welch_spread(logs_a, logs_b)
    centre = statistics.fmean(logs_b) - statistics.fmean(logs_a)
    if spread is None:
        return Decision(
            math.exp(centre),
            None,
            None,
            confidence,
            "inconclusive",
            len(usable_a),
            len(usable_b),
            None,
            tuple(warnings),
        )
    error, df = spread
    reach = student_quantile((1 + confidence) / 2, df) * error if error > 0 else 0.0
    low, high = math.exp(centre - reach), math.exp(centre + reach)
    answer = _answer(low, high, smallest_difference)
    num_more = None
    if answer == "inconclusive":
        num_more = more_repeats(error, min(len(usable_a), len(usable_b)), math.log1p(smallest_difference), confidence)
    return Decision(
        math.exp(centre), low, high, confidence, answer, len(usable_a), len(usable_b), num_more, tuple(warnings)
    )


def more_repeats(error: float, num_runs: int, wanted_reach: float, confidence: float) -> int:
    """About how many more runs of each side bring the interval's half width (of the log ratio) below `wanted_reach`.

    `error` is the standard error that `num_runs` of each side gave; it falls with the root of their number.
    """
    spread = error * math.sqrt(num_runs)
    low, high = num_runs, num_runs + 1
    while high < _MOST_REPEATS and _reach(spread, high, confidence) > wanted_reach:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _reach(spread, middle, confidence) > wanted_reach else (low, middle)
    return high - num_runs


def _reach(spread: float, num_runs: int, confidence: float) -> float:
    return student_quantile((1 + confidence) / 2, max(2 * (num_runs - 1), 1)) * spread / math.sqrt(num_runs)


def _answer(low: float, high: float, smallest_difference: float) -> Answer:
    if low > 1:
        return "b is higher"
    if high < 1:
        return "a is higher"
    is_narrow = high <= 1 + smallest_difference and low >= 1 / (1 + smallest_difference)
    return "no difference shown" if is_narrow else "inconclusive"


def _usable(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value) and value > 0]


def _warnings(given: Sequence[Sequence[float]], usable: Sequence[Sequence[float]], names: tuple[str, str]) -> list[str]:
    """What the sides lack; what both lack is mentioned once."""
    lacks_a, lacks_b = (_lacks(*side) for side in zip(given, usable, strict=True))
    return [
        *(f"{names[0]} and {names[1]} have {lack}" for lack in lacks_a if lack in lacks_b),
        *(f"{names[0]} has {lack}" for lack in lacks_a if lack not in lacks_b),
        *(f"{names[1]} has {lack}" for lack in lacks_b if lack not in lacks_a),
    ]


def _lacks(given: Sequence[float], usable: Sequence[float]) -> list[str]:
    lacks = []
    if len(usable) < len(given):
        lacks.append(f"{len(given) - len(usable)} of {len(given)} values that are no positive numbers and do not count")
    if not usable:
        lacks.append("no value")
    elif len(usable) == 1:
        lacks.append("one run only: how runs differ is not known")
    elif len(usable) < _FEW_RUNS:
        lacks.append(f"{len(usable)} runs only: the interval is wide for lack of them")
    return lacks


def _paired_spread(logs_a: Sequence[float], logs_b: Sequence[float]) -> tuple[float, float] | None:
    """Standard error of the mean difference of pairs, and its degrees of freedom."""
    differences = [b - a for a, b in zip(logs_a, logs_b, strict=True)]
    if len(differences) < 2:  # noqa: PLR2004
        return None
    return statistics.stdev(differences) / math.sqrt(len(differences)), len(differences) - 1.0


def welch_spread(logs_a: Sequence[float], logs_b: Sequence[float]) -> tuple[float, float] | None:
    """Standard error of the difference of two means of unlike spread, and its degrees of freedom (Welch)."""
    if len(logs_a) < 2 or len(logs_b) < 2:  # noqa: PLR2004
        return None
    part_a = statistics.variance(logs_a) / len(logs_a)
    part_b = statistics.variance(logs_b) / len(logs_b)
    total = part_a + part_b
    if total <= 0:
        return 0.0, float(len(logs_a) + len(logs_b) - 2)
    df = total**2 / (part_a**2 / (len(logs_a) - 1) + part_b**2 / (len(logs_b) - 1))
    return math.sqrt(total), df
