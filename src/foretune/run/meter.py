"""Numbers of a step, read only when the device has them: logging never waits for the device."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from foretune.step.training_step import StepOutcome


@dataclass(frozen=True)
class Reading:
    """One step's numbers, on the host."""

    step: int
    loss: float
    grad_norm: float | None
    lr: float
    step_s: float


@dataclass(frozen=True)
class _Pending:
    step: int
    values: Tensor
    """Loss and gradient norm, on their way to the host."""
    arrived: "_Arrival | None"
    """None where the numbers are already on the host."""
    has_norm: bool
    lr: float
    step_s: float


class _Arrival(Protocol):
    """What a device's event can be asked."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


def _sent_to_host(values: Tensor) -> tuple[Tensor, _Arrival | None]:
    """Starts the copy and returns at once; only page-locked memory can be copied to in the background."""
    if values.device.type == "cuda":
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return host, arrived
    if values.device.type == "mps":
        # Unified memory: the values are read where they are, once the work before the event is done.
        event = torch.mps.Event()
        event.record()
        return values, event
    return values, None


class Meter:
    """Keeps what the device has not delivered yet, and the time each step took as the host saw it."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()
        self._last_s = time.perf_counter()

    def restart_clock(self) -> None:
        """Called after a pause (saving, validation) that is not part of a step."""
        self._last_s = time.perf_counter()

    def record(self, step: int, lr: float, outcome: StepOutcome) -> None:
        now_s = time.perf_counter()
        loss, norm = outcome.loss, outcome.grad_norm
        on_device = torch.stack([loss.float(), norm.float()]) if norm is not None else loss.float()[None]
        values, arrived = _sent_to_host(on_device)
        self._pending.append(_Pending(step, values, arrived, norm is not None, lr, now_s - self._last_s))
        self._last_s = now_s

    def arrived(self) -> Iterator[Reading]:
        """What has been delivered since the last call, in order; does not wait."""
        while self._pending and (self._pending[0].arrived is None or self._pending[0].arrived.query()):
            yield self._read(self._pending.popleft())

    def drain(self) -> Iterator[Reading]:
        """Everything; waits for the device. For the pauses in which it is idle anyway."""
        while self._pending:
            pending = self._pending.popleft()
            if pending.arrived is not None:
                pending.arrived.synchronize()
            yield self._read(pending)

    @staticmethod
    def _read(pending: _Pending) -> Reading:
        values = pending.values.tolist()
        return Reading(pending.step, values[0], values[1] if pending.has_norm else None, pending.lr, pending.step_s)
