"""Numbers of a step, read only when the device has them: logging never waits for the device."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from foretune.accelerator.copies import NumbersToRead
from foretune.step.training_step import StepOutcome
from foretune.training.memory_now import MemoryNow
from foretune.training.phases import Lap, PhaseClock


@dataclass(frozen=True)
class StepReading:
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


@dataclass(slots=True)
class _Pending:
    step: int
    numbers: NumbersToRead
    """Loss and, where there is one, gradient norm."""
    lr: float
    lap: Lap
    num_owed: int | None
    memory_bytes: dict[str, int]


class Meter:
    """Keeps what the device has not delivered yet, and the time each step took by phase."""

    def __init__(self, clock: PhaseClock | None = None, memory: MemoryNow | None = None) -> None:
        self.clock = clock or PhaseClock()
        self._memory = memory
        self._finished: deque[_Pending] = deque()
        """Steps that the device has made, not read yet."""
        self._owed: deque[_Pending] = deque()
        """Steps that it had not made when it was last asked. Steps are finished in order."""

    def restart_clock(self) -> Lap:
        """Called after a pause (saving, validation) that is not part of a step; returns what the pause took."""
        return self.clock.lap()

    def record(self, step: int, lr: float, outcome: StepOutcome) -> None:
        values = [value for value in (outcome.loss, outcome.grad_norm) if value is not None]
        # Before the lap ends: where the host's clock measures a device's work, this waits for it.
        numbers = NumbersToRead(values)
        lap = self.clock.lap()
        self._ask_the_device()
        num_owed = len(self._owed) if lap.marks else None
        memory_bytes = self._memory.read() if self._memory is not None else {}
        self._owed.append(_Pending(step, numbers, lr, lap, num_owed, memory_bytes))

    def _ask_the_device(self) -> None:
        """Each step is asked for until it is finished, and not again: many may wait to be read."""
        while self._owed and _is_there(self._owed[0]):
            self._finished.append(self._owed.popleft())

    @property
    def num_pending(self) -> int:
        """Steps whose numbers have not been read yet."""
        return len(self._finished) + len(self._owed)

    def arrived(self) -> Iterator[StepReading]:
        """What has been delivered since the last call, in order; does not wait."""
        self._ask_the_device()
        while self._finished:
            yield self._read(self._finished.popleft())

    def drain(self) -> Iterator[StepReading]:
        """Everything; waits for the device. For the pauses in which it is idle anyway."""
        while self._finished or self._owed:
            pending = (self._finished or self._owed).popleft()
            pending.numbers.wait()
            pending.lap.wait()
            yield self._read(pending)

    @staticmethod
    def _read(pending: _Pending) -> StepReading:
        loss, *norms = pending.numbers.read()
        host_s, device_s = pending.lap.host_s, pending.lap.device_s()
        phases_s = host_s if device_s is None else device_s
        return StepReading(
            step=pending.step,
            loss=loss,
            grad_norm=norms[0] if norms else None,
            lr=pending.lr,
            step_s=sum(phases_s.values()),
            phases_s=phases_s,
            host_phases_s=None if device_s is None else host_s,
            num_owed=pending.num_owed,
            memory_bytes=pending.memory_bytes,
        )


def _is_there(pending: _Pending) -> bool:
    return pending.numbers.have_arrived() and pending.lap.has_arrived()
