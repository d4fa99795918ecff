"""Speed from raw step times."""

import statistics
from collections.abc import Sequence

from foretune.stats.intervals import Estimate

Rate = tuple[float, float | None, float | None]
"""So many in a second, and the ends of the interval."""


def rate_of(times: Estimate, count: float) -> Rate | None:
    """The rate of `count` things in a time; None where there is no time."""
    if not times.value:
        return None
    # The longest time is the lowest rate; an interval that reaches zero has no highest rate.
    low = None if times.high is None else count / times.high
    high = None if times.low is None or times.low <= 0 else count / times.low
    return count / times.value, low, high


def median_step_s(step_times_s: Sequence[float], *, num_warmup: int) -> float | None:
    """The typical step once it is warm; None when there is no warm step."""
    warm = step_times_s[num_warmup:]
    return statistics.median(warm) if warm else None


def samples_per_s(step_times_s: Sequence[float], samples_per_step: int, *, num_warmup: int) -> float | None:
    """All samples of the warm steps over all of their time, so that slow steps count with their whole length."""
    warm = step_times_s[num_warmup:]
    total_s = sum(warm)
    return len(warm) * samples_per_step / total_s if total_s > 0 else None
