"""A device that works behind the host's back: a queue with marks, a depth and a clock of its own, in virtual time.

Work begins when it was handed over or when the work before it ended, whichever is later, and takes what it takes. The
host's clock passes where the host works or waits, so that everything is known exactly whatever the machine does.
"""

from collections import deque
from dataclasses import dataclass

from foretune.accelerator.timing import DeviceMark
from tests.virtual_clock import VirtualClock

_EPOCH_S = 5_000.0
"""What the device's clock shows when the host's shows 0: nobody may mix the two."""
_QUEUE_DEPTH = 1024
"""As deep as the queues of real devices; the host waits where it is full."""


@dataclass(frozen=True)
class FakeMark:
    """A place in the queue, and when the device gets there by its own clock."""

    host: VirtualClock
    time_s: float

    def has_arrived(self) -> bool:
        return self.time_s <= self.host() + _EPOCH_S

    def wait(self) -> None:
        self.host.advance(max(0.0, self.time_s - _EPOCH_S - self.host()))

    def elapsed_s(self, later: DeviceMark) -> float:
        assert isinstance(later, FakeMark), "marks of one device"
        assert self.has_arrived(), "asked before it arrived"
        assert later.has_arrived(), "asked before it arrived"
        return later.time_s - self.time_s


class FakeDevice:
    """`launch` hands work over and returns at once; `mark` is what a clock puts between."""

    def __init__(self, host: VirtualClock) -> None:
        self.host = host
        self.speed = 1.0
        """Below 1 it slows itself down."""
        self._clock_s = 0.0
        self._queue: deque[FakeMark] = deque()
        """What was handed over and is not finished, with where each piece ends."""

    def launch(self, work_s: float) -> None:
        self._hand_over(work_s / self.speed)

    def mark(self) -> FakeMark:
        return self._hand_over(0.0)

    def synchronize(self) -> None:
        self.mark().wait()

    def _hand_over(self, work_s: float) -> FakeMark:
        while self._queue and self._queue[0].has_arrived():
            self._queue.popleft()
        if len(self._queue) >= _QUEUE_DEPTH:
            self._queue.popleft().wait()
        self._clock_s = max(self._clock_s, self.host() + _EPOCH_S) + work_s
        mark = FakeMark(self.host, self._clock_s)
        self._queue.append(mark)
        return mark
