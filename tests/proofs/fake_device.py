"""A device that works behind the host's back: a queue on a thread, with a clock, marks and a depth of its own.

Its clock is exact: work begins when it was handed over or when the work before it ended, whichever is later, and takes
what it takes. The thread only decides when the host can see that it is done.
"""

import queue
import threading
import time
from dataclasses import dataclass, field

from foretune.run.phases import DeviceMark

_EPOCH_S = 5_000.0
"""What the device's clock shows when the host's shows 0: nobody may mix the two."""
_QUEUE_DEPTH = 1024
"""As deep as the queues of real devices; the host waits where it is full."""


@dataclass
class FakeMark:
    """A place in the queue."""

    done: threading.Event = field(default_factory=threading.Event)
    time_s: float | None = None

    def query(self) -> bool:
        return self.done.is_set()

    def synchronize(self) -> None:
        self.done.wait()

    def elapsed_s(self, later: DeviceMark) -> float:
        assert isinstance(later, FakeMark), "marks of one device"
        assert self.time_s is not None, "asked before it arrived"
        assert later.time_s is not None, "asked before it arrived"
        return later.time_s - self.time_s


class FakeDevice:
    """`launch` hands work over and returns at once; `mark` is what a clock puts between."""

    def __init__(self) -> None:
        self.speed = 1.0
        """Below 1 it slows itself down."""
        self.worked_s = 0.0
        self._clock_s = 0.0
        self._queue: queue.Queue[tuple[float, float, FakeMark | None] | None] = queue.Queue(_QUEUE_DEPTH)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __enter__(self) -> "FakeDevice":
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()

    def launch(self, work_s: float) -> None:
        self._queue.put((_now_s(), work_s / self.speed, None))

    def mark(self) -> FakeMark:
        mark = FakeMark()
        self._queue.put((_now_s(), 0.0, mark))
        return mark

    def synchronize(self) -> None:
        self.mark().synchronize()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            handed_over_s, work_s, mark = item
            self._clock_s = max(self._clock_s, handed_over_s) + work_s
            self.worked_s += work_s
            if (ahead_s := self._clock_s - _now_s()) > 0:
                time.sleep(ahead_s)
            if mark is not None:
                mark.time_s = self._clock_s
                mark.done.set()


def _now_s() -> float:
    return time.perf_counter() + _EPOCH_S
