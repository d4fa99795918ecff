"""Every moment is charged to one phase; on a device that has a clock, to what the device did."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from foretune.accelerator.timing import EventClock, clock_of
from foretune.core.vocabulary import TimePhase
from foretune.training.phases import Lap, PhaseClock


def at(*times_s: float) -> Any:
    times = iter(times_s)
    return lambda: next(times)


def test_phases_sum_to_the_time_between_laps() -> None:
    clock = PhaseClock(now=at(0.0, 1.0, 3.0, 3.5, 4.0))
    with clock.phase(TimePhase.DATA):
        pass
    with clock.phase(TimePhase.FORWARD):
        lap = clock.lap()
        assert lap.host_s == {"other": 1.5, "data": 2.0, "forward": 0.5}
        assert lap.wall_s == 4.0
        assert lap.device_s() is None
        assert lap.has_arrived()
        clock.now = at(5.0, 6.0)
    assert clock.lap().host_s == {"forward": 1.0, "other": 1.0}


def test_a_phase_within_another_counts_once() -> None:
    clock = PhaseClock(now=at(0.0, 1.0, 2.0, 4.0, 7.0, 7.0))
    with clock.phase(TimePhase.VALIDATION), clock.phase(TimePhase.ENCODE):
        pass
    assert clock.lap().host_s == {"other": 1.0, "validation": 4.0, "encode": 2.0}


def test_an_error_ends_its_phase() -> None:
    clock = PhaseClock(now=at(0.0, 1.0, 2.0, 5.0))
    with pytest.raises(ValueError, match="broke"), clock.phase(TimePhase.FORWARD):
        raise ValueError("broke")
    assert clock.lap().host_s == {"other": 4.0, "forward": 1.0}


@dataclass
class Event:
    """A torch event whose device is at the time that a test says."""

    device_ms: list[float]
    at_ms: float = 0.0
    waits: list[str] = field(default_factory=list)

    def record(self) -> None:
        self.at_ms = self.device_ms[0]

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.waits.append("waited")

    def elapsed_time(self, later: "Event") -> float:
        return later.at_ms - self.at_ms


def test_on_a_device_its_own_clock_counts() -> None:
    device_ms = [0.0]
    clock = PhaseClock(EventClock(lambda: Event(device_ms)), now=at(*range(20)))
    with clock.phase(TimePhase.FORWARD):
        device_ms[0] = 30.0
    with clock.phase(TimePhase.BACKWARD):
        device_ms[0] = 90.0
    device_ms[0] = 91.0
    lap = clock.lap()
    assert lap.device_s() == pytest.approx({"other": 0.001, "forward": 0.03, "backward": 0.06})
    assert lap.host_s == {"other": 3.0, "forward": 1.0, "backward": 1.0}
    # The next lap begins where this one ended.
    device_ms[0] = 100.0
    assert sum((clock.lap().device_s() or {}).values()) == pytest.approx(0.009)


def test_only_cuda_has_a_clock_of_its_own() -> None:
    """Timing events of MPS wait for the device at each reading, and can hang."""
    assert clock_of(torch.device("cpu")) is None
    assert isinstance(clock_of(torch.device("cuda")), EventClock)
    assert clock_of(torch.device("mps")) is None
    assert Lap({}).has_arrived()


def test_ranges_surround_phases_only_while_someone_looks() -> None:
    heard: list[str] = []

    class Range:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            heard.append(f"+{self.name}")

        def __exit__(self, *_: object) -> None:
            heard.append(f"-{self.name}")

    clock = PhaseClock()
    with clock.phase(TimePhase.DATA):
        clock.annotate = Range
    with clock.phase(TimePhase.FORWARD):
        clock.annotate = None
    with clock.phase(TimePhase.LOGGING, in_trace=False):
        pass
    assert heard == ["+forward", "-forward"]
