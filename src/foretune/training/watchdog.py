"""A process of several that makes no progress writes its stacks, before the others stop waiting for it."""

import ctypes
import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

STACKS = "stacks"
"""The folder in a run directory, made when there is something to write."""
_SHARE = 0.8
"""Of the time that processes wait for each other: every stack is written before the first of them gives up."""


class Watchdog:
    """An instrument of the loop. From the first step on, a thread looks how long ago a step ended.

    A pause for validation or a checkpoint counts, too: if it is longer than the others would wait, the run is lost.
    Only samples, for which the others wait step by step, are reported as progress.
    """

    def __init__(self, run: Path, rank: int, timeout_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self._path = run / STACKS / f"process-{rank}.txt"
        self._limit_s, self._now = timeout_s * _SHARE, now
        self._last_s, self._has_written = now(), False
        self._changing, self._ended = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def before_step(self, step: int) -> None:
        self.progressed()
        if self._thread is None:
            self._path.unlink(missing_ok=True)  # of an earlier start of the run
            self._thread = threading.Thread(target=self._watch, name="foretune-watchdog", daemon=True)
            self._thread.start()

    def after_step(self, step: int) -> None:
        self.progressed()

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def progressed(self) -> None:
        """Reports that this process does not hang."""
        self._last_s = self._now()
        if not self._has_written:
            return
        with self._changing:
            # It was slow, and did not hang: asked to stop, it saves again.
            self._has_written = False
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))

    def _watch(self) -> None:
        while not self._ended.wait(self._wait_s()):
            with self._changing:
                if self._has_written or self._now() - self._last_s < self._limit_s:
                    continue
                self._has_written = True
                _die_when_terminated()
            self._write()

    def _wait_s(self) -> float:
        if self._has_written:
            return self._limit_s
        return max(self._last_s + self._limit_s - self._now(), 0.01)

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("w", encoding="utf-8") as file:
                file.write(f"No step ended for {self._limit_s:g} s. What every thread of this process was doing:\n\n")
                file.flush()
                faulthandler.dump_traceback(file)
        except OSError:
            # The disk may be what hangs or is full. The launcher shows what a process writes here.
            faulthandler.dump_traceback(sys.stderr)


def _die_when_terminated() -> None:
    """Lets a launcher end a process that hangs.

    Python would run the handler that asks for a save when the call that hangs returns, which is never; only its main
    thread may set another one, so the operating system's own is set.
    """
    if sys.platform != "win32":
        ctypes.CDLL(None).signal(signal.SIGTERM, None)


def stacks_text(run: Path) -> str:
    """Where stacks were written, as an addition to a sentence; nothing where none were."""
    folder = run / STACKS
    has_stacks = folder.is_dir() and any(folder.iterdir())
    return f". Stacks of the processes that made no progress: {folder}" if has_stacks else ""
