"""A loop like the product's on the fake device: the same clock, the same meter, work that only takes virtual time."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from foretune.core.vocabulary import TimePhase
from foretune.step.training_step import StepOutcome
from foretune.training.meter import Meter, StepReading
from foretune.training.phases import PhaseClock
from tests.proofs.fake_device import FakeDevice
from tests.virtual_clock import VirtualClock


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step costs, on the device and on the host."""

    forward_s: float = 0.004
    backward_s: float = 0.008
    optimizer_s: float = 0.001
    num_launches: int = 10
    """Of forward and backward each."""
    launch_s: float = 0.00002
    """On the host, for each."""
    batch_s: float = 0.0
    """What it takes to make a batch."""
    num_workers: int = 0
    """Processes that make batches ahead, two each; without any the loop makes them itself."""


class Batches:
    """Makes one batch after the other: here, or ahead in processes that each make every n-th."""

    def __init__(self, work: Work, clock: VirtualClock) -> None:
        self._work, self._clock = work, clock
        self._free_s = [clock()] * work.num_workers
        """When each process has made what it was asked for."""
        self._ready_s: deque[float] = deque()
        self._num_asked = 0
        for _ in range(2 * work.num_workers):
            self._ask()

    def __next__(self) -> None:
        if not self._work.num_workers:
            self._clock.advance(self._work.batch_s)
            return
        self._clock.advance(max(0.0, self._ready_s.popleft() - self._clock()))
        self._ask()

    def _ask(self) -> None:
        worker = self._num_asked % self._work.num_workers
        self._free_s[worker] = max(self._free_s[worker], self._clock()) + self._work.batch_s
        self._ready_s.append(self._free_s[worker])
        self._num_asked += 1


def train(
    device: FakeDevice, work: Work, num_steps: int, before_step: Callable[[int], None] = lambda step: None
) -> Iterator[StepReading]:
    """Yields the numbers of the steps as they arrive; drains at the end."""
    host = device.host
    meter, batches = Meter(PhaseClock(device, now=host)), Batches(work, host)
    clock = meter.clock
    clock.restart()
    for step in range(num_steps):
        before_step(step)
        with clock.phase(TimePhase.DATA):
            next(batches)
        for phase, work_s in ((TimePhase.FORWARD, work.forward_s), (TimePhase.BACKWARD, work.backward_s)):
            with clock.phase(phase):
                for _ in range(work.num_launches):
                    host.advance(work.launch_s)
                    device.launch(work_s / work.num_launches)
        with clock.phase(TimePhase.OPTIMIZER):
            host.advance(work.launch_s)
            device.launch(work.optimizer_s)
        meter.record(step, 1e-3, StepOutcome(torch.tensor(1.0), None))
        with clock.phase(TimePhase.LOGGING):
            yield from meter.arrived()
    yield from meter.drain()


def as_event(reading: StepReading) -> dict[str, Any]:
    return {"kind": "step", **vars(reading)}
