"""`foretune calibrate` on this CPU, and what is stored."""

import json
from pathlib import Path

import pytest

from foretune.core.values.device_profile import DeviceProfile
from foretune.record.device_profiles import cpu_device_name, host_id, store_profile, stored_profile, stored_profiles
from tests.cli.conftest import Foretune
from tests.device_profiles import copies_and_collectives, device_profile


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_short_calibration_is_stored_and_shown(foretune: Foretune) -> None:
    answer = foretune("calibrate", "--on", "cpu", "--threads", "1", "--budget", "1s")
    assert answer.returncode == 0, answer.stderr
    (stored,) = stored_profiles()
    for part in (
        "(cpu, 1 thread)",
        "large product",
        "fp32",
        "Memory: ",
        "Dispatch: ",
        f"Stored in {stored.path}",
        "Next: foretune plan MODEL --on here",
    ):
        assert part in answer.stdout, part
    found = stored_profile(cpu_device_name(), 1)
    assert found is not None
    assert found.host == host_id()
    assert not found.is_default_threads
    times = [point.timing for point in found.products] + [point.timing for point in found.memory]
    assert all(timing.seconds > 0 for timing in times)
    shown = foretune("calibrate", "--show", "--json")
    assert json.loads(shown.stdout) == [found.to_mapping()]


def test_show_names_what_is_stored_and_what_cannot_be_read(foretune: Foretune) -> None:
    assert foretune("calibrate", "--show").stdout == "Nothing is stored. Run: foretune calibrate\n"
    slow = store_profile(device_profile(slow_formats=("fp16",)))
    card = store_profile(device_profile(device="NVIDIA L4", **copies_and_collectives()))
    damaged = slow.with_name("damaged.json")
    damaged.write_text("{}")
    answer = foretune("calibrate", "--show")
    assert answer.returncode == 0
    for part in (
        "Test CPU (cpu, 2 threads), torch 2.13.0, measured 2026-10-01",
        "NVIDIA L4 (cuda), torch 2.13.0",
        "Dispatch: 0.008 ms an operator",
        "Host to device: 16.8 GB/s",
        "fp16 is slow here",
        "half of the samples are within 5 % of the fastest",
        f"Stored in {card}",
    ):
        assert part in answer.stdout, part
    assert f"{damaged} is not used: Expected a DeviceProfile" in answer.stderr
    answer = foretune("calibrate", "--forget")
    assert sorted(answer.stdout.splitlines()) == sorted(f"Removed {path}" for path in (slow, card, damaged))
    assert foretune("calibrate", "--forget").stdout == "Nothing is stored.\n"


def test_the_profile_as_json_has_its_format(foretune: Foretune) -> None:
    store_profile(device_profile())
    (mapping,) = json.loads(foretune("calibrate", "--show", "--json").stdout)
    assert DeviceProfile.from_mapping(mapping) == device_profile()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "soon"), "--budget: 'soon' is not a time. Run: foretune calibrate --budget 45s"),
        (("--budget", "0s"), "leaves no time to measure"),
        (("--show", "--forget"), "--show does not go with --forget"),
        (("--show", "--on", "cpu"), "--on is for measuring"),
        (("--on", "tpu"), "there is no tpu device here"),
    ],
)
def test_mistakes_are_refused(arguments: tuple[str, ...], message: str, foretune: Foretune) -> None:
    answer = foretune("calibrate", *arguments)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert list(stored_profiles()) == []
