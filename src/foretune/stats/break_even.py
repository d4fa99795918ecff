"""From which step on something that starts slowly and then runs faster has paid for its start."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from foretune.stats.intervals import Estimate, typical
from foretune.stats.steady import find_steady


@dataclass(frozen=True)
class BreakEven:
    """Two ways to do the same steps: a plain one, and one with a slow start."""

    start_s: float
    """What the slow start takes more than that of the plain way, beyond steady steps."""
    plain: Estimate
    """Seconds a steady step takes the plain way."""
    started: Estimate
    """Seconds a steady step takes after the slow start."""
    step: int | None
    """The first step after which the slow start has paid; None where it never does, or where that was not shown."""
    low: int | None
    high: int | None
    """The interval around it; None where its end lies beyond every number of steps."""
    why: str
    """One sentence."""


def start_s(times_s: Sequence[float]) -> float:
    """What the warm-up of a run took beyond as many steady steps; at least the first step counts as warm-up."""
    num_warmup = max(1, find_steady(times_s).num_warmup)
    steady_s = statistics.median(times_s[num_warmup:] or times_s)
    return sum(times_s[:num_warmup]) - num_warmup * steady_s


def break_even(plain_runs: Sequence[Sequence[float]], started_runs: Sequence[Sequence[float]]) -> BreakEven:
    """From raw step times of runs of both ways, warm-up included."""
    plain, started = typical(plain_runs), typical(started_runs)
    extra_s = statistics.fmean(map(start_s, started_runs)) - statistics.fmean(map(start_s, plain_runs))
    if plain.value is None or started.value is None:
        return BreakEven(extra_s, plain, started, None, None, None, "one of the two never became steady")
    saved_s = plain.value - started.value
    least_s, most_s = _saved_interval(plain, started)
    if most_s <= 0:
        return BreakEven(extra_s, plain, started, None, None, None, "never: its steps are not faster")
    low = _steps(extra_s, most_s)
    if least_s <= 0:
        why = "not shown: within the interval its steps may be no faster; more repeats would show it"
        return BreakEven(extra_s, plain, started, None, low, None, why)
    step = _steps(extra_s, saved_s)
    return BreakEven(extra_s, plain, started, step, low, _steps(extra_s, least_s), f"it has paid after {step} steps")


def steps_to_pay(start_s: float, plain_s: float, started_s: float) -> int | None:
    """The number of steps after which a slow start has paid, from single times; None if its steps are not faster."""
    return _steps(start_s, plain_s - started_s) if started_s < plain_s else None


def _saved_interval(plain: Estimate, started: Estimate) -> tuple[float, float]:
    """The least and the most that a step saves. Without intervals nothing is shown, so the least is nothing."""
    if plain.low is None or plain.high is None or started.low is None or started.high is None:
        return 0.0, math.inf
    assert plain.value is not None, "an interval has a value in it"
    assert started.value is not None, "an interval has a value in it"
    # Errors of independent means add as squares do.
    reach_s = math.hypot(plain.high - plain.value, started.high - started.value)
    saved_s = plain.value - started.value
    return saved_s - reach_s, saved_s + reach_s


def _steps(extra_s: float, saved_s: float) -> int:
    return max(1, math.ceil(extra_s / saved_s))
