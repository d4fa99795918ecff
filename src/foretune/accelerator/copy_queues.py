"""Copies from host memory to a device beside its computation, and what orders the two.

Memory for a copy is allocated on the compute stream and released there. So the allocator sees one stream, needs no
`record_stream`, and holds no block back until an event has passed: a plan that replays one stream is exact. Two waits
make it safe. A copy begins after everything that was issued before it, because earlier kernels may still use that
memory. Computation waits for a copy before it reads it, and before the memory is released.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from foretune.accelerator.copies import fill


class Arrival(Protocol):
    """Copies on their way to the device."""

    def wait(self) -> None:
        """Lets work that is issued from now on wait until they are complete. The host does not wait."""


class CopyQueue(Protocol):
    """Copies tensors to one device, in the order in which they were started."""

    def start(self, rooms: Sequence[Tensor], stored: Sequence[Tensor]) -> Arrival:
        """Starts copies from host memory to allocated tensors."""


class _Arrived:
    def wait(self) -> None:
        pass


class CopiesInTurn:
    """Copies on the compute stream, so that computation waits: for devices without streams, and for no prefetching."""

    def start(self, rooms: Sequence[Tensor], stored: Sequence[Tensor]) -> Arrival:
        for room, tensor in zip(rooms, stored, strict=True):
            fill(room, tensor)
        return _Arrived()


class Streams(Protocol):
    """What `torch.cuda` has, on ROCm too."""

    def Stream(self, device: torch.device) -> Any: ...  # noqa: N802 - torch's name
    def Event(self) -> Any: ...  # noqa: N802 - torch's name
    def current_stream(self, device: torch.device) -> Any: ...
    def stream(self, stream: Any) -> AbstractContextManager[Any]: ...


class CopiesBeside:
    """Copies on a second stream while the compute stream works."""

    def __init__(self, device: torch.device, streams: Streams = torch.cuda) -> None:
        self._device, self._streams = device, streams
        self._side = streams.Stream(device)

    def start(self, rooms: Sequence[Tensor], stored: Sequence[Tensor]) -> Arrival:
        self._side.wait_stream(self._streams.current_stream(self._device))
        with self._streams.stream(self._side):
            for room, tensor in zip(rooms, stored, strict=True):
                fill(room, tensor)
        done = self._streams.Event()
        done.record(self._side)
        return _OnItsWay(done, self._device, self._streams)


class _OnItsWay:
    def __init__(self, done: Any, device: torch.device, streams: Streams) -> None:
        self._done, self._device, self._streams = done, device, streams

    def wait(self) -> None:
        self._streams.current_stream(self._device).wait_event(self._done)


QueueMaker = Callable[[torch.device], CopyQueue]


def _queue_beside(device: torch.device) -> CopyQueue:
    """Returns what overlaps where the device can: CUDA and ROCm, from pinned memory."""
    return CopiesBeside(device) if device.type == "cuda" else CopiesInTurn()


_make_queue: QueueMaker = _queue_beside


def queue_beside(device: torch.device) -> CopyQueue:
    """Returns a queue whose copies run beside computation, as far as the device can do that."""
    return _make_queue(device)


@contextmanager
def copying_with(make: QueueMaker) -> Iterator[None]:
    """Replaces the queues that are made in this context, for tests."""
    global _make_queue  # noqa: PLW0603 - shared by all swapped blocks
    before, _make_queue = _make_queue, make
    try:
        yield
    finally:
        _make_queue = before
