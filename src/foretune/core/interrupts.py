"""Asked to stop, a run finishes its step, saves and leaves; what would be lost anyway is not finished."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SAME_COMMAND = "Encoded samples are kept: the same command continues."
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))


class StoppedAtOnce(BaseException):
    """Leaves work that need not be finished. Not an Exception, so that no handler of failures takes it for one."""


class StopRequest:
    """Set by a signal; read by the loop between steps."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._raises = False

    def __bool__(self) -> bool:
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """Called by the handler of a signal, in the main thread."""
        self.reason = reason
        if self._raises:
            self._raises = False
            raise StoppedAtOnce

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Around work that may be left in the middle: a request raises StoppedAtOnce in it, even an earlier one."""
        self._raises = True
        try:
            if self.reason is not None:
                raise StoppedAtOnce
            yield
        finally:
            self._raises = False


class Interrupted(KeyboardInterrupt):
    """Stopped where a step could not be finished first: by Ctrl-C, or by any signal to the processes of a run.

    The text says what there is and how to go on.
    Whoever handles several runs must not take it for the failure of one.
    """


@contextmanager
def explained_if_interrupted(what_now: str) -> Iterator[None]:
    """Gives a Ctrl-C inside a sentence on what there is and what to type next."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"Interrupted. {what_now}") from interrupt


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turns the signals that schedulers and people send into a request; a second one of the same stops at once.

    In a job of SLURM only Ctrl-C does that. SLURM signals all processes of a job, and those that started this one pass
    the same signal on: it must still save. SLURM itself kills what does not end in time.
    """
    request = StopRequest()
    previous: dict[int, Any] = {}
    is_sent_twice = "SLURM_JOB_ID" in os.environ

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's signature
        if number == signal.SIGINT or not is_sent_twice:
            signal.signal(number, previous[number])
        request.ask(signal.Signals(number).name)

    for number in _SIGNALS:
        previous[number] = signal.getsignal(number)
        try:
            signal.signal(number, ask)
        except ValueError:
            # Only the main thread can listen to signals; elsewhere the caller decides when to stop.
            previous.pop(number)
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
