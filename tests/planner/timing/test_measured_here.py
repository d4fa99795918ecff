"""Plans prefer what was measured on this machine."""

from pathlib import Path

import pytest

from foretune import catalog
from foretune.catalog.devices import HERE
from foretune.planner.device_requests import cpu_here
from foretune.planner.timing.calibrated_speed import CalibratedSpeed
from foretune.planner.timing.measured_here import speeds_of_this_machine
from foretune.planner.timing.speed import NotKnown
from foretune.record.device_profiles import cpu_device_name, host_id, store_profile
from tests.device_profiles import copies_and_collectives, device_profile


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_without_a_profile_speeds_are_published() -> None:
    assert speeds_of_this_machine()(catalog.device("l40s")).evidence == "kernel tables"


def test_the_cpu_is_as_measured_and_other_devices_are_not() -> None:
    store_profile(device_profile(device=cpu_device_name(), host=host_id(), is_default_threads=True))
    speeds = speeds_of_this_machine()
    here = speeds(cpu_here(2**33))
    assert isinstance(here, CalibratedSpeed)
    assert here.evidence == "measured here"
    assert speeds(catalog.device("l40s")).evidence == "kernel tables"


def test_a_card_is_as_measured_under_its_catalogue_name() -> None:
    profile = device_profile(device="NVIDIA GeForce RTX 4090", host=host_id(), **copies_and_collectives())
    store_profile(profile)
    speeds = speeds_of_this_machine()
    assert speeds(catalog.device("rtx-4090")).evidence == "measured here"
    assert speeds(catalog.device("rtx-3090")).evidence == "data sheet"


def test_a_profile_of_another_machine_is_not_used() -> None:
    store_profile(device_profile(device="NVIDIA GeForce RTX 4090", host="other", **copies_and_collectives()))
    assert speeds_of_this_machine()(catalog.device("rtx-4090")).evidence == "data sheet"


def test_a_cpu_that_was_not_measured_says_what_to_do() -> None:
    with pytest.raises(NotKnown, match=r"how fast this CPU is. Measure it: foretune calibrate$"):
        speeds_of_this_machine()(cpu_here(2**33))


def test_a_cpu_is_known_by_its_number_of_threads() -> None:
    store_profile(device_profile(device=cpu_device_name(), host=host_id(), is_default_threads=True, num_threads=2))
    assert speeds_of_this_machine(num_threads=2)(cpu_here(2**33)).evidence == "measured here"
    with pytest.raises(NotKnown, match=r"with 3 threads. Measure it: foretune calibrate --threads 3"):
        speeds_of_this_machine(num_threads=3)(cpu_here(2**33))


def test_a_card_of_this_machine_is_known_by_its_own_name() -> None:
    """A training calls its device `here`, as it calls a CPU, whose speed it has not."""
    store_profile(device_profile(device=cpu_device_name(), host=host_id(), is_default_threads=True))
    here = catalog.device("l40s").model_copy(update={"name": HERE})
    assert speeds_of_this_machine()(here).evidence == "kernel tables"
    store_profile(device_profile(device="NVIDIA L40S", host=host_id(), **copies_and_collectives()))
    assert speeds_of_this_machine()(here).evidence == "measured here"
