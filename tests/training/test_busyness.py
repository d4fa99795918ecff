"""Other processes are distinguished from our own, and reported where they take cores that we could use."""

import subprocess
import sys
import time

import pytest

from foretune.core.observer import Observer
from foretune.training.busyness import BusyWatch, busy_warnings_of
from foretune.training.telemetry.host import HostSensor


class Heard(Observer):
    def __init__(self) -> None:
        self.reported: list[str] = []

    def warning(self, text: str) -> None:
        self.reported.append(text)


class FixedSensor:
    """A machine on which others use so many cores."""

    def __init__(self, other_cpus: float) -> None:
        self.other_cpus = other_cpus

    def read(self) -> dict[str, dict[str, float]]:
        return {"host": {"other_cpus": self.other_cpus}}


@pytest.mark.parametrize(
    ("other", "num_cores", "num_usable", "is_reported"),
    [
        (0.1, 2, 2, False),
        (0.5, 2, 2, False),
        (0.6, 2, 2, True),
        (1.8, 2, 2, True),
        (56.0, 64, 8, False),
        (59.0, 64, 8, True),
        (70.0, 64, 8, True),
    ],
)
def test_a_quarter_of_our_cores_is_the_most(other: float, num_cores: int, num_usable: int, is_reported: bool) -> None:
    assert bool(busy_warnings_of(other, num_cores, num_usable)) == is_reported


def test_the_sentence_names_the_cores() -> None:
    (text,) = busy_warnings_of(1.8, 2, 2)
    assert text.startswith("Other processes use 1.8 of 2 cores; ")
    (text,) = busy_warnings_of(70.0, 64, 8)
    assert "use 8.0 of 8 cores" in text


@pytest.mark.parametrize(("other", "num_reported"), [(0.0, 0), (1000.0, 1)])
def test_the_observer_hears_it_once(other: float, num_reported: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostSensor, "open", lambda: FixedSensor(other))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    heard = Heard()
    found = BusyWatch().warn(heard)
    assert len(found) == num_reported
    assert heard.reported == found


def test_without_psutil_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostSensor, "open", lambda: None)
    assert BusyWatch().warnings() == []


def test_our_own_processes_are_not_other_ones() -> None:
    """A child that computes is counted with us."""
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        sensor = HostSensor.open()
        assert sensor is not None
        host: dict[str, float] = {}
        while host.get("process_cpus", 0.0) == 0.0:
            time.sleep(0.3)
            host = dict(sensor.read()["host"])
    finally:
        child.kill()
        child.wait()
    assert host["process_cpus"] > 0
