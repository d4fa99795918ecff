"""A loop like the product's on the fake device: the same clock, the same meter, work that only takes time."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from foretune.run.meter import Meter, Reading
from foretune.run.phases import PhaseClock
from foretune.step.training_step import StepOutcome
from tests.proofs.fake_device import FakeDevice


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
    data_s: float = 0.0


def occupy(seconds: float) -> None:
    """The host works: it does not sleep, and nobody else gets its time."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def train(
    device: FakeDevice, work: Work, num_steps: int, before_step: Callable[[int], None] = lambda step: None
) -> Iterator[Reading]:
    """Yields the numbers of the steps as they arrive; drains at the end."""
    meter = Meter(PhaseClock(device))
    clock = meter.clock
    clock.restart()
    for step in range(num_steps):
        before_step(step)
        with clock.phase("data"):
            time.sleep(work.data_s)
        for phase, work_s in (("forward", work.forward_s), ("backward", work.backward_s)):
            with clock.phase(phase):  # type: ignore[arg-type]
                for _ in range(work.num_launches):
                    occupy(work.launch_s)
                    device.launch(work_s / work.num_launches)
        with clock.phase("optimizer"):
            occupy(work.launch_s)
            device.launch(work.optimizer_s)
        meter.record(step, 1e-3, StepOutcome(torch.tensor(1.0), None))
        with clock.phase("logging"):
            yield from meter.arrived()
    yield from meter.drain()


def as_event(reading: Reading) -> dict[str, Any]:
    return {"kind": "step", **vars(reading)}
