"""Readings become events of the run, and power becomes energy."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from foretune.record.events import EventLog, read_events
from foretune.training.telemetry.energy_sum import EnergySum
from foretune.training.telemetry.sampler import Sampler, open_sensors
from foretune.training.telemetry.sensor import Quantities


class Scripted:
    """Tells what it was given, then fails."""

    def __init__(self, *readings: Mapping[str, Quantities]) -> None:
        self.readings = list(readings)
        self.is_closed = False

    def read(self) -> Mapping[str, Quantities]:
        if not self.readings:
            raise OSError("unplugged")
        return self.readings.pop(0)

    def close(self) -> None:
        self.is_closed = True


def wait_for_readings(sampler: Sampler, num: int) -> None:
    """As long as it takes: how often its thread gets a processor is the machine's affair."""
    while len(sampler.recent) < num:
        assert sampler.thread.is_alive()
        time.sleep(0.001)


def test_power_is_joined_by_straight_lines() -> None:
    energy = EnergySum()
    for time_s, power_w in ((10.0, 100.0), (11.0, 200.0), (13.0, 200.0)):
        energy.add(time_s, {"nvidia:0": {"power_w": power_w}})
    assert energy.energy_j == pytest.approx(150 + 400)
    assert energy.mean_power_w == pytest.approx(550 / 3)


def test_a_counter_is_preferred_to_power() -> None:
    energy = EnergySum()
    for time_s, counter_j in ((0.0, 7000.0), (10.0, 9000.0)):
        energy.add(time_s, {"nvidia:0": {"power_w": 1.0, "energy_j": counter_j}, "rapl:package-0": {"energy_j": 5.0}})
    assert energy.by_source_j == {"nvidia:0": 2000.0, "rapl:package-0": 0.0}
    assert energy.mean_power_w == pytest.approx(200.0)


def test_what_was_told_once_or_never_is_absent() -> None:
    energy = EnergySum()
    energy.add(0.0, {"nvidia:0": {"power_w": 300.0}, "host": {"utilisation": 0.5}})
    assert energy.energy_j is None
    energy.add(1.0, {"host": {"utilisation": 0.5}})
    assert energy.energy_j is None
    assert energy.mean_power_w is None


def test_events_are_written_by_the_runs_own_thread(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    sensor = Scripted(*({"nvidia:0": {"power_w": 100.0 * i}} for i in range(1, 50)))
    sampler = Sampler(events, [sensor], every_s=0.02)
    sampler.before_step(0)
    wait_for_readings(sampler, 3)
    events.flush()
    assert list(read_events(tmp_path / "events.jsonl")) == [], "nothing before the loop has time for it"
    sampler.after_step(0)
    sampler.close()
    sampler.close()
    events.close()
    reported = list(read_events(tmp_path / "events.jsonl"))
    assert len(reported) >= 3
    assert reported[0]["devices"] == [{"source": "nvidia:0", "power_w": 100.0}]
    assert "host" not in reported[0]
    assert [event["read_s"] for event in reported] == sorted(event["read_s"] for event in reported)
    assert sensor.is_closed
    assert sampler.energy.energy_j is not None


def test_a_sensor_that_fails_is_put_away(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    good = Scripted(*({"host": {"utilisation": 0.5}} for _ in range(50)))
    sampler = Sampler(events, [Scripted({"nvidia:0": {"power_w": 1.0}}), good], every_s=0.01)
    sampler.start()
    wait_for_readings(sampler, 3)
    sampler.close()
    assert sampler.failed == ["Scripted: OSError: unplugged"]
    assert len(sampler.recent) > 2
    assert "nvidia:0" not in sampler.recent[-1][1]


def test_this_machine_for_real(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    # Longer than any machine takes for this: the first reading and the last are all there is.
    sampler = Sampler(events, open_sensors(), every_s=3600)
    sampler.start()
    wait_for_readings(sampler, 1)
    sampler.close()
    events.close()
    reported = list(read_events(tmp_path / "events.jsonl"))
    assert [event["kind"] for event in reported] == ["telemetry"] * 2
    assert reported[0]["host"]["memory_available_bytes"] > 0
    sources = [source for event in reported for source in (*event.get("devices", ()), *event.get("packages", ()))]
    has_power = any("power_w" in source or "energy_j" in source for source in sources)
    assert (sampler.energy.energy_j is not None) is has_power


def test_without_sensors_there_is_nothing(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    sampler = Sampler(events, [])
    sampler.before_step(0)
    sampler.after_step(0)
    sampler.close()
    assert sampler.energy.energy_j is None
    assert open_sensors(), "this machine has a host"
