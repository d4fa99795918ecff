"""What sensors tell, in which units; what they do not tell is absent.

The psutil path is executed for real. NVIDIA's and AMD's libraries are stand-ins (see fakes.py), RAPL is a made folder.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from foretune.training.places import DevicePlace
from foretune.training.telemetry.amd import AmdSensor, read_devices
from foretune.training.telemetry.host import HostSensor, hottest_c, quota_throttled_s
from foretune.training.telemetry.nvidia import NvidiaSensor, throttle_reasons
from foretune.training.telemetry.rapl import RaplSensor
from foretune.training.telemetry.sampler import open_sensors
from tests.training.telemetry.fakes import FakeNvml, fake_amdsmi


def test_nvidia_in_units_that_the_names_say() -> None:
    library = FakeNvml()
    sensor = NvidiaSensor(library)
    reading = sensor.read()
    assert reading["nvidia:0"] == {
        "power_w": 251.3,
        "energy_j": 5000.0,
        "clock_hz": 1410e6,
        "memory_clock_hz": 1593e6,
        "temperature_c": 61,
        "throttling": [],
        "utilisation": 0.97,
        "num_processes": 2,
        "memory_used_bytes": 30 * 2**30,
    }
    # Not zero: a card that does not count its energy has taken some all the same.
    assert set(reading["nvidia:0"]) - set(reading["nvidia:1"]) == {"power_w", "energy_j"}
    sensor.close()
    assert library.num_open == 0


def test_only_the_cards_of_the_run_count() -> None:
    assert set(NvidiaSensor(FakeNvml(), ["bb"]).read()) == {"nvidia:1"}
    assert set(NvidiaSensor(FakeNvml(), ["aa", "bb"]).read()) == {"nvidia:0", "nvidia:1"}
    assert set(NvidiaSensor(FakeNvml(), ["bb", "hidden"]).read()) == {"nvidia:1"}
    assert set(read_devices(fake_amdsmi(4), ["0000:21:00", "0000:41:00"])) == {"amd:1", "amd:3"}


def test_a_run_on_the_cpu_reads_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr("foretune.training.telemetry.amd.find_spec", lambda name: name)
    places = [DevicePlace("host", "cpu")]
    assert {type(sensor) for sensor in open_sensors(places)}.isdisjoint({NvidiaSensor, AmdSensor})


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [(0x01, []), (0x02, []), (0x04, ["power cap"]), (0x60, ["heat (software)", "heat (hardware)"])],
)
def test_throttling_is_told_from_idling(bits: int, reasons: list[str]) -> None:
    assert throttle_reasons(bits) == reasons


def test_without_a_card_there_is_no_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=no_driver))
    assert NvidiaSensor.open() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvidiaSensor.open() is None


def test_amd_in_units_that_the_names_say() -> None:
    assert read_devices(fake_amdsmi()) == {
        "amd:0": {
            "power_w": 412.0,
            "energy_j": pytest.approx(15.3),
            "clock_hz": 2100e6,
            "temperature_c": 74.0,
            "utilisation": 0.88,
            "throttling": [],
            "memory_used_bytes": 2**30,
        }
    }


def test_amd_is_asked_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amdsmi.py").write_text(
        "from tests.training.telemetry.fakes import fake_amdsmi\n"
        "def amdsmi_init(): pass\n"
        "def __getattr__(name): return getattr(fake_amdsmi(), name)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}:{Path(__file__).parents[3] / 'src'}")
    monkeypatch.syspath_prepend(str(tmp_path))
    sensor = AmdSensor.open()
    assert sensor is not None
    assert sensor.read()["amd:0"]["power_w"] == 412.0
    assert "amdsmi" not in sys.modules
    sensor.close()


def test_an_amd_process_that_dies_is_an_absent_sensor() -> None:
    sensor = AmdSensor([sys.executable, "-c", "raise SystemExit(3)"])
    assert sensor.read() == {}
    assert sensor.read() == {}
    sensor.close()


def make_zone(powercap: Path, name: str, energy_uj: int) -> Path:
    zone = powercap / name
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "name").write_text("package-0\n" if name.endswith(":0") else "core\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    (zone / "max_energy_range_uj").write_text("1000000000\n")
    return zone


def test_rapl_counts_on_when_its_counter_turns_over(tmp_path: Path) -> None:
    zone = make_zone(tmp_path, "intel-rapl:0", 900_000_000)
    make_zone(tmp_path, "intel-rapl:0:1", 1)
    sensor = RaplSensor.open(tmp_path)
    assert sensor is not None
    reported = []
    for energy_uj in (900_000_000, 990_000_000, 40_000_000):
        (zone / "energy_uj").write_text(f"{energy_uj}\n")
        reported.append(sensor.read()["rapl:package-0"]["energy_j"])
    assert reported == [0.0, 90.0, 140.0]
    assert set(sensor.read()) == {"rapl:package-0"}, "a part of a package is in the package already"


def test_without_rapl_there_is_no_sensor(tmp_path: Path) -> None:
    assert RaplSensor.open(tmp_path / "absent") is None
    make_zone(tmp_path, "intel-rapl:0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert RaplSensor.open(tmp_path) is None


def test_the_host_for_real() -> None:
    sensor = HostSensor.open()
    assert sensor is not None
    began_s, _, own_s = sensor._before
    while sensor._used_s()[2] - own_s < 0.3:
        sum(range(10_000))
    earlier_s, _, earlier_own_s = sensor._used_s()
    host = sensor.read()["host"]
    later_s, _, later_own_s = sensor._used_s()
    assert host["process_memory_bytes"] > 2**20
    assert host["memory_used_bytes"] > 0
    # Between what the counters give before and after the reading, however busy the machine is.
    least, most = (earlier_own_s - own_s) / (later_s - began_s), (later_own_s - own_s) / (earlier_s - began_s)
    assert least - 0.001 <= host["process_cpus"] <= most + 0.001
    assert 0 <= host["utilisation"] <= 1
    assert host["other_cpus"] >= 0


def test_without_swap_nothing_is_told_of_it() -> None:
    import psutil

    sensor = HostSensor.open()
    assert sensor is not None
    assert ("swap_used_bytes" in sensor.read()["host"]) is bool(psutil.swap_memory().total)


def test_heat_and_quota(tmp_path: Path) -> None:
    assert hottest_c({"acpitz": [SimpleNamespace(current=20.0)]}) is None
    assert hottest_c({"coretemp": [SimpleNamespace(current=50.0), SimpleNamespace(current=71.0)]}) == 71.0
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500000\n")
    assert quota_throttled_s(tmp_path / "cpu.stat") == 2.5
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    assert quota_throttled_s(tmp_path / "cpu.stat") is None
