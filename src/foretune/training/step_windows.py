"""Stretches of steps: how long they take, how sure that is, and what sensors reported meanwhile."""

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from foretune.core.observer import StepReport
from foretune.training.drift_causes import Reading, Window

Readings = Callable[[], Sequence[tuple[float, Reading]]]
"""Returns the newest readings of all sensors."""
_TRIMMED = 0.3
_MOST_LIKENESS = 0.9


ReservedShare = Callable[[], float | None]
"""Returns what the allocator holds over the card's memory; None where a full card is an error, not a slow one."""


def never_paged() -> None:
    """The share where allocations fail on a full card."""


def window_of(steps: Sequence[StepReport], readings: Readings, reserved_share: ReservedShare = never_paged) -> Window:
    """The mean of these steps, which are the newest, and what sensors reported while they ran."""
    hosts_s = [sum(report.host_phases_s.values()) for report in steps if report.host_phases_s is not None]
    owed = [report.num_owed for report in steps if report.num_owed is not None]
    return Window(
        _mean_phases(steps),
        _since(steps, readings()),
        host_s=statistics.fmean(hosts_s) if hosts_s else None,
        num_owed=statistics.fmean(owed) if owed else None,
        reserved_share=reserved_share(),
    )


def trimmed_mean(values: Sequence[float]) -> float:
    """Without the fastest and the slowest, so that a slow step now and then does not count."""
    num = int(_TRIMMED * len(values))
    return statistics.fmean(sorted(values)[num : len(values) - num])


def error_of_mean(values: Sequence[float], num: int) -> float:
    """Standard error of a mean of `num` such steps, neighbours that resemble each other taken into account."""
    spread = statistics.stdev(values)
    mean = statistics.fmean(values)
    products = [(a - mean) * (b - mean) for a, b in pairwise(values)]
    likeness = statistics.fmean(products) / spread**2 if spread else 0.0
    likeness = min(max(likeness, 0.0), _MOST_LIKENESS)
    return spread * math.sqrt((1 + likeness) / (1 - likeness) / num)


def _mean_phases(steps: Sequence[StepReport]) -> dict[str, float]:
    names = dict.fromkeys(name for report in steps for name in report.phases_s)
    return {name: statistics.fmean(report.phases_s.get(name, 0.0) for report in steps) for name in names}


def _since(steps: Sequence[StepReport], readings: Sequence[tuple[float, Reading]]) -> Sequence[tuple[float, Reading]]:
    """Readings of the time that these steps took; at least the last two."""
    if len(readings) <= 2:  # noqa: PLR2004 - a rate has two ends
        return readings
    begun_s = readings[-1][0] - sum(report.step_s for report in steps)
    return [reading for reading in readings if reading[0] >= begun_s]
