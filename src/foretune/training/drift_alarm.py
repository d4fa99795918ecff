"""An alarm in words when a run becomes slower than it was, with the likely cause; once for each cause."""

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from foretune.core.observer import Observer, StepReport
from foretune.core.units import duration_text
from foretune.stats.steady import find_steady
from foretune.training.drift_causes import Reading, Window, likely_cause

_NUM_AT_FIRST = 60
"""Steps that say how fast the run is."""
_NUM_RECENT = 20
_MOST_SLOWER = 1.15
"""Times the first speed: less than that is nobody's worry."""
_ERRORS = 6.0
"""Standard errors by which recent steps must be slower. An alarm is looked for many times in a long run."""
_TRIMMED = 0.3


@dataclass(frozen=True)
class Alarm:
    """What is reported."""

    step: int
    cause: str
    text: str


class DriftAlarm(Observer):
    """Hears of every step. Compares the last twenty, and the twenty before, with the steady steps at the start.

    Both must be slower: a busy moment is no drift. Spikes are trimmed, so a slow step now and then is none either.
    """

    def __init__(self, tell: Callable[[Alarm], None], readings: Callable[[], Sequence[tuple[float, Reading]]]) -> None:
        self._tell, self._readings = tell, readings
        self._first: list[StepReport] = []
        self._before: Window | None = None
        self._level_s = self._error_s = 0.0
        self._recent: deque[StepReport] = deque(maxlen=2 * _NUM_RECENT)
        self._told: set[str] = set()

    def stepped(self, report: StepReport) -> None:
        if self._before is None:
            self._first.append(report)
            if len(self._first) == _NUM_AT_FIRST:
                self._learn()
            return
        self._recent.append(report)
        is_time = (report.step + 1) % (_NUM_RECENT // 2) == 0
        if is_time and len(self._recent) == 2 * _NUM_RECENT:
            self._look(report)

    def _learn(self) -> None:
        times_s = [report.step_s for report in self._first]
        num_warmup = find_steady(times_s).last_change
        if num_warmup > _NUM_AT_FIRST // 2:
            # Not steady yet: what follows says more about the run's speed than what was.
            self._first = self._first[num_warmup:] if num_warmup < _NUM_AT_FIRST else []
            return
        steady = self._first[num_warmup:]
        self._level_s = _trimmed_mean([report.step_s for report in steady])
        self._error_s = _error_of_a_mean([report.step_s for report in steady])
        self._before = Window(_mean_phases(steady), self._since(steady))

    def _look(self, report: StepReport) -> None:
        assert self._before is not None, "there is something to compare with"
        earlier, later = list(self._recent)[:_NUM_RECENT], list(self._recent)[_NUM_RECENT:]
        least_s = max(_MOST_SLOWER * self._level_s, self._level_s + _ERRORS * self._error_s)
        levels_s = [_trimmed_mean([one.step_s for one in part]) for part in (earlier, later)]
        if min(levels_s) <= least_s:
            return
        cause = likely_cause(self._before, Window(_mean_phases(later), self._since(later)))
        if cause.name in self._told:
            return
        self._told.add(cause.name)
        slower = levels_s[1] / self._level_s - 1
        was, became = duration_text(self._level_s), duration_text(levels_s[1])
        text = f"Steps take {slower:.0%} longer than at the start ({was} to {became}): {cause.text}."
        self._tell(Alarm(report.step, cause.name, text))

    def _since(self, steps: Sequence[StepReport]) -> list[tuple[float, Reading]]:
        """Readings of the time that these steps, the newest, took; at least the last two."""
        readings = list(self._readings())
        if not readings:
            return []
        begun_s = readings[-1][0] - sum(report.step_s for report in steps)
        return [one for one in readings if one[0] >= begun_s] if len(readings) > 2 else readings  # noqa: PLR2004


def _mean_phases(steps: Sequence[StepReport]) -> dict[str, float]:
    names = dict.fromkeys(name for report in steps for name in report.phases_s)
    return {name: statistics.fmean(report.phases_s.get(name, 0.0) for report in steps) for name in names}


def _trimmed_mean(values: Sequence[float]) -> float:
    num = int(_TRIMMED * len(values))
    return statistics.fmean(sorted(values)[num : len(values) - num])


def _error_of_a_mean(values: Sequence[float]) -> float:
    """Of a mean of twenty such steps, neighbours that resemble each other taken into account."""
    spread = statistics.stdev(values)
    mean = statistics.fmean(values)
    products = [(a - mean) * (b - mean) for a, b in pairwise(values)]
    likeness = statistics.fmean(products) / spread**2 if spread else 0.0
    likeness = min(max(likeness, 0.0), 0.9)
    return spread * math.sqrt((1 + likeness) / (1 - likeness) / _NUM_RECENT)
