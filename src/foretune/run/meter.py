"""Numbers of a step, read only when the device has them: logging never waits for the device."""

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from foretune.run.memory_now import MemoryNow
from foretune.run.phases import Lap, PhaseClock
from foretune.step.training_step import StepOutcome


@dataclass(frozen=True)
class Reading:
    """One step's numbers, on the host."""

    step: int
    loss: float
    grad_norm: float | None
    lr: float
    step_s: float
    """From the end of the step before to the end of this one, on the device's clock where it has one."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """The same seconds by phase: they sum to `step_s`."""
    host_phases_s: dict[str, float] | None = None
    """Where a device has a clock of its own: the seconds by phase that the host took to hand the step over."""
    num_owed: int | None = None
    """Steps that the device had not finished when this one had been handed over; None without such a device."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """What process ("host") and device hold after the step, where it was asked."""


@dataclass(frozen=True)
class _Pending:
    step: int
    values: Tensor
    """Loss and gradient norm, on their way to the host."""
    arrived: "_Arrival | None"
    """None where the numbers are already on the host."""
    has_norm: bool
    lr: float
    lap: Lap
    num_owed: int | None
    memory_bytes: dict[str, int]


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
    """Keeps what the device has not delivered yet, and the time each step took by phase."""

    def __init__(self, clock: PhaseClock | None = None, memory: MemoryNow | None = None) -> None:
        self.clock = clock or PhaseClock()
        self._memory = memory
        self._pending: deque[_Pending] = deque()

    def restart_clock(self) -> Lap:
        """Called after a pause (saving, validation) that is not part of a step; returns what the pause took."""
        return self.clock.lap()

    def record(self, step: int, lr: float, outcome: StepOutcome) -> None:
        lap = self.clock.lap()
        num_owed = self._num_owed() if lap.marks else None
        memory_bytes = self._memory.read() if self._memory is not None else {}
        loss, norm = outcome.loss, outcome.grad_norm
        on_device = torch.stack([loss.float(), norm.float()]) if norm is not None else loss.float()[None]
        values, arrived = _sent_to_host(on_device)
        self._pending.append(_Pending(step, values, arrived, norm is not None, lr, lap, num_owed, memory_bytes))

    def _num_owed(self) -> int:
        """Steps are finished in order, so those from the first unfinished one on are owed."""
        finished = itertools.takewhile(lambda pending: pending.lap.has_arrived(), self._pending)
        return len(self._pending) - sum(1 for _ in finished)

    @property
    def num_pending(self) -> int:
        """Steps whose numbers have not been read yet."""
        return len(self._pending)

    def arrived(self) -> Iterator[Reading]:
        """What has been delivered since the last call, in order; does not wait."""
        while self._pending and _is_there(self._pending[0]):
            yield self._read(self._pending.popleft())

    def drain(self) -> Iterator[Reading]:
        """Everything; waits for the device. For the pauses in which it is idle anyway."""
        while self._pending:
            pending = self._pending.popleft()
            if pending.arrived is not None:
                pending.arrived.synchronize()
            pending.lap.wait()
            yield self._read(pending)

    @staticmethod
    def _read(pending: _Pending) -> Reading:
        values = pending.values.tolist()
        host_s, device_s = pending.lap.host_s, pending.lap.device_s()
        phases_s = host_s if device_s is None else device_s
        return Reading(
            step=pending.step,
            loss=values[0],
            grad_norm=values[1] if pending.has_norm else None,
            lr=pending.lr,
            step_s=sum(phases_s.values()),
            phases_s=phases_s,
            host_phases_s=None if device_s is None else host_s,
            num_owed=pending.num_owed,
            memory_bytes=pending.memory_bytes,
        )


def _is_there(pending: _Pending) -> bool:
    return (pending.arrived is None or pending.arrived.query()) and pending.lap.has_arrived()
