"""Logging never waits for the device: numbers are read when they have arrived."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from foretune.step.training_step import StepOutcome
from foretune.training import meter as meter_module
from foretune.training.meter import Meter, StepReading
from foretune.training.phases import PhaseClock


class OnItsWay:
    """Numbers that a device still owes, complete when the test says so."""

    def __init__(self, values: Sequence[Tensor]) -> None:
        self._values = [float(value) for value in values]
        self.done = False
        self.num_waits = 0

    def have_arrived(self) -> bool:
        return self.done

    def wait(self) -> None:
        self.num_waits += 1
        self.done = True

    def read(self) -> list[float]:
        assert self.done, "read before it arrived"
        return self._values


@pytest.fixture
def owed(monkeypatch: pytest.MonkeyPatch) -> list[OnItsWay]:
    """The numbers of all recorded steps, in order."""
    made: list[OnItsWay] = []

    def send(values: Sequence[Tensor]) -> OnItsWay:
        made.append(OnItsWay(values))
        return made[-1]

    monkeypatch.setattr(meter_module, "NumbersToRead", send)
    return made


def record(meter: Meter, *losses: float) -> None:
    for step, loss in enumerate(losses):
        meter.record(step, 0.5, StepOutcome(torch.tensor(loss), torch.tensor(loss * 10)))


def test_nothing_is_read_before_it_arrived(owed: list[OnItsWay]) -> None:
    meter = Meter()
    record(meter, 1.0, 2.0, 3.0)
    assert list(meter.arrived()) == []
    # In order: the third has arrived, but the first has not.
    owed[2].done = True
    assert list(meter.arrived()) == []
    owed[0].done = True
    assert [reading.loss for reading in meter.arrived()] == [1.0]
    owed[1].done = True
    assert [(reading.step, reading.loss, reading.grad_norm) for reading in meter.arrived()] == [
        (1, 2.0, 20.0),
        (2, 3.0, 30.0),
    ]
    assert list(meter.arrived()) == []
    assert sum(numbers.num_waits for numbers in owed) == 0


def test_draining_waits_for_each_once(owed: list[OnItsWay]) -> None:
    meter = Meter()
    record(meter, 1.0, 2.0)
    assert [reading.loss for reading in meter.drain()] == [1.0, 2.0]
    assert [numbers.num_waits for numbers in owed] == [1, 1]
    assert list(meter.drain()) == []


def test_on_the_host_numbers_are_there_at_once() -> None:
    meter = Meter()
    record(meter, 4.0)
    (reading,) = meter.arrived()
    assert reading == StepReading(0, 4.0, 40.0, 0.5, step_s=reading.step_s, phases_s={"other": reading.step_s})


def test_without_a_gradient_norm_there_is_none() -> None:
    meter = Meter()
    meter.record(7, 0.1, StepOutcome(torch.tensor(2.0, dtype=torch.bfloat16), None))
    (reading,) = meter.drain()
    assert (reading.step, reading.loss, reading.grad_norm) == (7, 2.0, None)


def test_pauses_are_not_part_of_a_step() -> None:
    times_s = iter([0.0, 1.5, 100.0, 100.25])
    meter = Meter(PhaseClock(now=lambda: next(times_s)))
    record(meter, 1.0)
    assert meter.restart_clock().wall_s == 98.5
    meter.record(1, 0.5, StepOutcome(torch.tensor(1.0), None))
    assert [reading.step_s for reading in meter.drain()] == [1.5, 0.25]
