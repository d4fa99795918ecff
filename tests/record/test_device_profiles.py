"""Profiles of devices on the disk: only one that fits is used, and a file that cannot be read harms nothing."""

import json
from pathlib import Path

import pytest

from foretune.core.values.device_profile import DeviceProfile
from foretune.record.device_profiles import host_id, profiles_folder, store_profile, stored_profile, stored_profiles
from tests.device_profiles import device_profile

HOST = "0123456789abcdef"


def test_a_profile_is_read_as_it_was_stored(tmp_path: Path) -> None:
    made = device_profile()
    path = store_profile(made, tmp_path)
    assert path.name == f"test-cpu.{HOST}.2-threads.json"
    assert stored_profile("Test CPU", 2, host=HOST, folder=tmp_path) == made
    assert DeviceProfile.from_json(path.read_text()) == made


def test_each_number_of_threads_has_its_own(tmp_path: Path) -> None:
    store_profile(device_profile(), tmp_path)
    assert stored_profile("Test CPU", 1, host=HOST, folder=tmp_path) is None
    store_profile(device_profile(num_threads=1, is_default_threads=False), tmp_path)
    for num_threads, expected in ((1, 1), (2, 2), (None, 2)):
        found = stored_profile("Test CPU", num_threads, host=HOST, folder=tmp_path)
        assert found is not None
        assert found.num_threads == expected


def test_threads_of_the_host_do_not_matter_to_an_accelerator(tmp_path: Path) -> None:
    store_profile(device_profile(kind="cuda", device="NVIDIA L4"), tmp_path)
    assert stored_profile("NVIDIA L4", 7, host=HOST, folder=tmp_path) is not None


def test_other_devices_and_machines_are_not_used(tmp_path: Path) -> None:
    store_profile(device_profile(), tmp_path)
    assert stored_profile("Other CPU", 2, host=HOST, folder=tmp_path) is None
    assert stored_profile("Test CPU", 2, folder=tmp_path) is None, "this machine is not the one of the profile"
    store_profile(device_profile(host=host_id()), tmp_path)
    assert stored_profile("Test CPU", 2, folder=tmp_path) is not None


def test_the_newest_is_used(tmp_path: Path) -> None:
    """Threads of an accelerator's host may have changed."""
    for num_threads, date in ((1, "2026-10-02"), (2, "2026-10-01")):
        store_profile(device_profile(kind="cuda", num_threads=num_threads, measured_at=date), tmp_path)
    found = stored_profile("Test CPU", host=HOST, folder=tmp_path)
    assert found is not None
    assert found.measured_at == "2026-10-02"


def _newer(text: str) -> str:
    return json.dumps({**json.loads(text), "format_version": DeviceProfile.format_version() + 1})


def _without_products(text: str) -> str:
    return json.dumps({key: value for key, value in json.loads(text).items() if key != "products"})


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: "[]", "Expected a DeviceProfile"),
        (_newer, "pip install --upgrade foretune"),
        (_without_products, "products: Field required"),
        (lambda text: text.replace("0.05]", '"a"]'), "is damaged"),
    ],
)
def test_a_file_that_cannot_be_read_counts_as_none(damage, problem: str, tmp_path: Path) -> None:
    path = store_profile(device_profile(), tmp_path)
    path.write_text(damage(path.read_text()))
    assert stored_profile("Test CPU", 2, host=HOST, folder=tmp_path) is None
    (found,) = stored_profiles(tmp_path)
    assert problem in str(found.problem)


def test_the_users_folder_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profiles_folder() == tmp_path / "foretune" / "devices"
    assert list(stored_profiles()) == []
    assert store_profile(device_profile()).parent == profiles_folder()
