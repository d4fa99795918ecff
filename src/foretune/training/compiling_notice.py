"""Reports that a step compiles, and for how long so far: nothing else is heard of a run in these minutes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foretune.core.observer import Observer
from foretune.core.units import duration_text

_PATIENCE: tuple[tuple[float, float], ...] = ((10.0, 1.0), (60.0, 5.0), (float("inf"), 15.0))
"""Until so many seconds have passed, the time is reported again after so many: a log file should not fill with it."""


@contextmanager
def compiling_notice(observer: Observer, what: str, now: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Reports `what` from a thread for as long as the block takes.

    Observers write whole lines at once, so that a warning of the block may come between.
    """
    started_s, over = now(), threading.Event()

    def report() -> None:
        while True:
            passed_s = now() - started_s
            observer.preparing(notice_text(what, passed_s), 0, 0)
            if over.wait(next(every_s for until_s, every_s in _PATIENCE if passed_s < until_s)):
                return

    thread = threading.Thread(target=report, name="compiling notice", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def notice_text(what: str, passed_s: float) -> str:
    """What is being done, and for how long so far."""
    return f"{what} (for {duration_text(passed_s)} so far)" if passed_s >= 1 else what
