"""An alarm in words when a run becomes slower than it was, with the likely cause; once for each cause."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from foretune.core.observer import Observer, StepReport
from foretune.core.units import duration_text
from foretune.stats.steady import find_steady
from foretune.training.drift_causes import Window, likely_cause
from foretune.training.step_windows import Readings, ReservedShare, error_of_mean, never_paged, trimmed_mean, window_of

_NUM_AT_FIRST = 60
"""Steps that say how fast the run is."""
_NUM_RECENT = 20
_MOST_SLOWER = 1.15
"""Times the first speed: less than that is nobody's worry."""
_ERRORS = 6.0
"""Standard errors by which recent steps must be slower. An alarm is looked for many times in a long run."""


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

    def __init__(
        self, tell: Callable[[Alarm], None], readings: Readings, reserved_share: ReservedShare = never_paged
    ) -> None:
        self._tell, self._readings, self._reserved_share = tell, readings, reserved_share
        self._first: list[StepReport] = []
        self._before: Window | None = None
        self._level_s = self._error_s = 0.0
        self._recent: deque[StepReport] = deque(maxlen=2 * _NUM_RECENT)
        self._reported: set[str] = set()

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
        self._level_s = trimmed_mean([report.step_s for report in steady])
        self._error_s = error_of_mean([report.step_s for report in steady], _NUM_RECENT)
        self._before = window_of(steady, self._readings, self._reserved_share)

    def _look(self, report: StepReport) -> None:
        assert self._before is not None, "there is something to compare with"
        earlier, later = list(self._recent)[:_NUM_RECENT], list(self._recent)[_NUM_RECENT:]
        least_s = max(_MOST_SLOWER * self._level_s, self._level_s + _ERRORS * self._error_s)
        levels_s = [trimmed_mean([one.step_s for one in part]) for part in (earlier, later)]
        if min(levels_s) <= least_s:
            return
        cause = likely_cause(self._before, window_of(later, self._readings, self._reserved_share))
        if cause.name in self._reported:
            return
        self._reported.add(cause.name)
        slower = levels_s[1] / self._level_s - 1
        was, became = duration_text(self._level_s), duration_text(levels_s[1])
        text = f"Steps take {slower:.0%} longer than at the start ({was} to {became}): {cause.text}."
        self._tell(Alarm(report.step, cause.name, text))
