"""Where the time of a run goes: every moment belongs to exactly one phase, so phases sum to the wall time.

On the host a phase lasts as long as the host is in it. A device that works behind its back has a time of its own: marks
are put into the queue where phases change, and read when they have arrived. Nobody waits for the device.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType

from foretune.accelerator.timing import DeviceClock, DeviceMark
from foretune.core.vocabulary import StepPhase, TimePhase


@dataclass(frozen=True)
class Lap:
    """The time between two laps: the seconds of each phase on the host, and the marks on the device."""

    host_s: dict[str, float]
    marks: tuple[tuple[str, DeviceMark], ...] = ()
    """(phase that begins here, mark); the last ends the lap. Empty without a device clock."""

    @property
    def wall_s(self) -> float:
        return sum(self.host_s.values())

    def has_arrived(self) -> bool:
        return not self.marks or self.marks[-1][1].has_arrived()

    def wait(self) -> None:
        if self.marks:
            self.marks[-1][1].wait()

    def device_s(self) -> dict[str, float] | None:
        """Seconds between the marks, by phase: what the device did or waited for. Ask when the lap has arrived."""
        if not self.marks:
            return None
        seconds: dict[str, float] = {}
        for (name, begin), (_, end) in zip(self.marks, self.marks[1:], strict=False):
            seconds[name] = seconds.get(name, 0.0) + begin.elapsed_s(end)
        return seconds


@dataclass
class PhaseClock:
    """Charges the time to the innermost phase that is open. `with clock.phase(TimePhase.DATA): ...`"""

    device: DeviceClock | None = None
    annotate: Callable[[str], AbstractContextManager[object]] | None = None
    """While a profiler runs: surrounds each phase with a range in its trace."""
    now: Callable[[], float] = time.perf_counter
    _open: list[str] = field(default_factory=lambda: [TimePhase.OTHER])
    _host_s: dict[str, float] = field(default_factory=dict)
    _marks: list[tuple[str, DeviceMark]] = field(default_factory=list)
    _last_s: float = 0.0

    def __post_init__(self) -> None:
        self.restart()

    def phase(self, phase: TimePhase | StepPhase, in_trace: bool = True) -> AbstractContextManager[object]:
        """Surrounds a phase; outside of the trace where what starts and stops the trace happens in it."""
        return _Phase(self, phase, in_trace)

    def restart(self) -> None:
        """Forgets the lap so far."""
        self._host_s = {}
        self._last_s = self.now()
        self._marks = [] if self.device is None else [(self._open[-1], self.device.mark())]

    def lap(self) -> Lap:
        """What has passed since the last lap; the next begins at the same moment."""
        self._charge()
        marks = tuple(self._marks)
        if self.device is not None:
            end = (self._open[-1], self.device.mark())
            marks, self._marks = (*marks, end), [end]
        host_s, self._host_s = self._host_s, {}
        return Lap(host_s, marks)

    def enter(self, name: str) -> None:
        self._charge()
        self._open.append(name)
        if self.device is not None:
            self._marks.append((name, self.device.mark()))

    def leave(self) -> None:
        self._charge()
        self._open.pop()
        if self.device is not None:
            self._marks.append((self._open[-1], self.device.mark()))

    def _charge(self) -> None:
        now_s = self.now()
        name = self._open[-1]
        self._host_s[name] = self._host_s.get(name, 0.0) + now_s - self._last_s
        self._last_s = now_s


class _Phase:
    """One passage through a phase. A class, because a generator would cost three times as much."""

    __slots__ = ("_clock", "_in_trace", "_name", "_range")

    def __init__(self, clock: PhaseClock, name: str, in_trace: bool) -> None:
        self._clock, self._name, self._in_trace = clock, name, in_trace
        self._range: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        self._clock.enter(self._name)
        if self._in_trace and self._clock.annotate is not None:
            self._range = self._clock.annotate(self._name)
            self._range.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._range is not None:
            self._range.__exit__(kind, error, trace)
        self._clock.leave()
