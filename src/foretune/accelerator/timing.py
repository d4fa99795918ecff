"""When a device has finished its work, and how long that took."""

from collections.abc import Callable
from typing import Any, Protocol

import torch


def wait_for(device: torch.device) -> None:
    """Waits until the device has executed everything that was issued."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


class DeviceMark(Protocol):
    """A place in a device's queue; the device records the time when it gets there."""

    def has_arrived(self) -> bool: ...

    def wait(self) -> None: ...

    def elapsed_s(self, later: "DeviceMark") -> float:
        """Returns the seconds on the device's clock between this mark and a later one. Both must have arrived."""


class DeviceClock(Protocol):
    """Puts marks into a device's queue."""

    def mark(self) -> DeviceMark: ...


class EventMark:
    """A mark made of an event of torch, which counts milliseconds."""

    def __init__(self, event: Any) -> None:
        self._event = event
        event.record()

    def has_arrived(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()

    def elapsed_s(self, later: DeviceMark) -> float:
        assert isinstance(later, EventMark), "marks of one device"
        return float(self._event.elapsed_time(later._event)) / 1000


class EventClock:
    """Makes marks from events of torch."""

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event

    def mark(self) -> EventMark:
        return EventMark(self._new_event())


def clock_of(device: torch.device) -> DeviceClock | None:
    """Returns the device's own clock; None where the host's clock has to do.

    Timing events of MPS wait for the device at each reading, can appear in the wrong order, and hang if they were
    waited for (https://github.com/pytorch/pytorch/issues/162872).
    """
    if device.type != "cuda":
        return None
    return EventClock(lambda: torch.Event(device=device, enable_timing=True))
