"""Logging never waits for the device: numbers are read when an event says that they have arrived."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from foretune.step.training_step import StepOutcome
from foretune.training import meter as meter_module
from foretune.training.meter import Meter, StepReading
from foretune.training.phases import PhaseClock


class FakeEvent:
    """A device's event whose work is done when the test says so."""

    def __init__(self) -> None:
        self.done = False
        self.num_waits = 0

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.num_waits += 1
        self.done = True

    def record(self) -> None:
        """Taken note of."""


class OnItsWay:
    """Numbers that a device still owes: whoever reads them too early would have to wait for it."""

    def __init__(self, values: Tensor, event: FakeEvent) -> None:
        self._values, self._event = values, event

    def tolist(self) -> Any:
        assert self._event.done, "read before it arrived"
        return self._values.tolist()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[FakeEvent]:
    """The events of all recorded steps, in order."""
    made: list[FakeEvent] = []

    def send(values: Sequence[Tensor]) -> tuple[Any, FakeEvent]:
        event = FakeEvent()
        made.append(event)
        return OnItsWay(torch.stack(list(values)), event).tolist, event

    monkeypatch.setattr(meter_module, "_sent_to_host", send)
    return made


def record(meter: Meter, *losses: float) -> None:
    for step, loss in enumerate(losses):
        meter.record(step, 0.5, StepOutcome(torch.tensor(loss), torch.tensor(loss * 10)))


def test_nothing_is_read_before_it_arrived(events: list[FakeEvent]) -> None:
    meter = Meter()
    record(meter, 1.0, 2.0, 3.0)
    assert list(meter.arrived()) == []
    # In order: the third has arrived, but the first has not.
    events[2].done = True
    assert list(meter.arrived()) == []
    events[0].done = True
    assert [reading.loss for reading in meter.arrived()] == [1.0]
    events[1].done = True
    assert [(reading.step, reading.loss, reading.grad_norm) for reading in meter.arrived()] == [
        (1, 2.0, 20.0),
        (2, 3.0, 30.0),
    ]
    assert list(meter.arrived()) == []
    assert sum(event.num_waits for event in events) == 0


def test_draining_waits_for_each_once(events: list[FakeEvent]) -> None:
    meter = Meter()
    record(meter, 1.0, 2.0)
    assert [reading.loss for reading in meter.drain()] == [1.0, 2.0]
    assert [event.num_waits for event in events] == [1, 1]
    assert list(meter.drain()) == []


def test_the_copy_to_the_host_is_made_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens on a CUDA device, with its calls written down: page-locked memory, no waiting, the event last."""
    calls: list[str] = []

    class Host:
        def copy_(self, values: Any, non_blocking: bool) -> None:
            calls.append(f"copy non_blocking={non_blocking}")

        def tolist(self) -> list[float]:
            return [4.5]

    class Event(FakeEvent):
        def record(self) -> None:
            calls.append("event")

    def empty(shape: Any, dtype: Any, pin_memory: bool) -> Host:
        calls.append(f"empty pin_memory={pin_memory}")
        return Host()

    value: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), shape=(2,), dtype=None, float=lambda: None)
    cuda = SimpleNamespace(Event=Event)
    monkeypatch.setattr(meter_module, "torch", SimpleNamespace(empty=empty, cuda=cuda, stack=lambda _: value))
    read, arrived = meter_module._sent_to_host([value])
    assert isinstance(arrived, Event)
    assert read() == [4.5]
    assert calls == ["empty pin_memory=True", "copy non_blocking=True", "event"]


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
