"""An alarm in words when a run is far slower than its plan, with the likely cause; at most once."""

from collections.abc import Callable
from dataclasses import dataclass

from foretune.core.observer import Observer, StepReport
from foretune.core.units import rates_text
from foretune.core.values.plan_time import StepTime, TimeEvidence
from foretune.stats.steady import find_steady
from foretune.training.drift_causes import Cause, Window, planned_window, shown_cause
from foretune.training.step_windows import Readings, ReservedShare, error_of_mean, never_paged, trimmed_mean, window_of

LOOKS = (20, 40, 80, 160, 320)
"""After so many steps the run is compared with its plan, until that has an answer. What becomes slower later is a
matter of `drift_alarm`."""
MARGIN = 1.1
"""Times the high end of the planned step time: less than that is nobody's worry."""
_ERRORS = 4.0
"""Standard errors by which steps must be slower than that."""
_LIKELIEST = 2 / 3
"""Share of a step from which on its longest phase is worth a name."""
_RERUN: dict[TimeEvidence, str] = {
    "measured here": "If nothing else uses this machine, measure it again: foretune calibrate",
    "kernel tables": "The plan rests on published kernel times. Measure this device: foretune calibrate",
    "data sheet": "The plan rests on the data sheet. Measure this device: foretune calibrate",
}


@dataclass(frozen=True)
class SlowerThanPlanned:
    """What is reported."""

    step: int
    cause: str
    text: str
    planned_samples_per_s: float
    measured_samples_per_s: float


class PlanAlarm(Observer):
    """Hears of every step until it has compared the steady ones with the plan."""

    def __init__(
        self,
        planned: StepTime,
        tell: Callable[[SlowerThanPlanned], None],
        readings: Readings,
        shows_speed: Callable[[int], bool] = lambda _: True,
        reserved_share: ReservedShare = never_paged,
    ) -> None:
        """`shows_speed`: whether a step is as fast as others; one under a profiler is not."""
        self._planned, self._tell, self._readings, self._shows_speed = planned, tell, readings, shows_speed
        self._reserved_share = reserved_share
        self._steps: list[StepReport] = []
        self._is_over = False

    def stepped(self, report: StepReport) -> None:
        if self._is_over or not self._shows_speed(report.step):
            return
        self._steps.append(report)
        if len(self._steps) in LOOKS:
            self._is_over = self._look() or len(self._steps) == LOOKS[-1]
            if self._is_over:
                self._steps = []

    def _look(self) -> bool:
        """Returns whether the comparison has an answer."""
        num_warmup = find_steady([report.step_s for report in self._steps]).last_change
        if num_warmup > len(self._steps) // 2:
            return False
        steady = self._steps[num_warmup:]
        times_s = [report.step_s for report in steady]
        level_s, slow_s = trimmed_mean(times_s), MARGIN * self._planned.high_s
        reach_s = _ERRORS * error_of_mean(times_s, len(times_s))
        if level_s - reach_s > slow_s:
            self._tell(self._alarm(steady, level_s))
            return True
        return level_s + reach_s < slow_s

    def _alarm(self, steady: list[StepReport], level_s: float) -> SlowerThanPlanned:
        planned, newest = self._planned, steady[-1]
        now = window_of(steady, self._readings, self._reserved_share)
        cause = shown_cause(planned_window(planned.step_s), now) or _unknown_cause(now, planned.evidence)
        samples = newest.samples_per_step
        rates = [samples / seconds for seconds in (planned.step_s, level_s, planned.high_s, planned.low_s)]
        (likely, measured, low, high), unit = rates_text(rates, "sample")
        return SlowerThanPlanned(
            step=newest.step,
            cause=cause.name,
            text=f"Slower than planned: {measured} {unit} instead of {likely} ({low} to {high}): {cause.text}.",
            planned_samples_per_s=samples / planned.step_s,
            measured_samples_per_s=samples / level_s,
        )


def _unknown_cause(now: Window, evidence: TimeEvidence) -> Cause:
    """What is left if no sensor shows why."""
    longest = max(now.phases_s, key=lambda name: now.phases_s[name], default=None)
    where = "no sensor shows why"
    if longest is not None and now.phases_s[longest] > _LIKELIEST * now.step_s:
        where += f"; most of the time is in the phase {longest!r}"
    return Cause("unknown", f"{where}. {_RERUN[evidence]}")
