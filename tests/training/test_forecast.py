"""The device that a run would take, as the catalogue knows it, with the memory it really has."""

from types import SimpleNamespace

import pytest
import torch

from foretune import catalog
from foretune.catalog.devices import Device
from foretune.core.errors import Refused
from foretune.core.units import GIB, MIB
from foretune.planner.overheads import usable_bytes
from foretune.record.machine import host_memory_bytes
from foretune.training import devices, forecast
from foretune.training.forecast import device_here


def card_here(monkeypatch: pytest.MonkeyPatch, name: str, total_bytes: int, hip: str | None = None) -> Device:
    """A machine with one card, as torch describes it."""
    monkeypatch.setattr(devices, "available_devices", lambda: [torch.device("cuda", 0), torch.device("cpu")])
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=total_bytes))
    found = device_here("auto")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "total_bytes", "hip", "row"),
    [
        ("NVIDIA GeForce RTX 4090", 25_262_096_384, None, "rtx-4090"),
        ("NVIDIA GeForce RTX 3080", 12 * GIB - 400 * MIB, None, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 3080", 10 * GIB - 300 * MIB, None, "rtx-3080-10gb"),
        ("AMD Instinct MI300X", 206_141_652_992, "7.0", "mi300x"),
        # One of the two devices of a card.
        ("AMD Instinct MI250X", 64 * GIB - 16 * MIB, "7.0", "mi250x"),
    ],
)
def test_a_card_of_the_catalogue_has_the_memory_that_torch_reports(
    monkeypatch: pytest.MonkeyPatch, name: str, total_bytes: int, hip: str | None, row: str
) -> None:
    found, known = card_here(monkeypatch, name, total_bytes, hip), catalog.device(row)
    assert found.name == "here"
    assert (found.title, found.kind, found.arch) == (known.title, known.kind, known.arch)
    # torch's total is what is left when the driver has taken its share, which a plan takes off again.
    assert 0 <= total_bytes - usable_bytes(found) < MIB


@pytest.mark.parametrize(("hip", "kind"), [(None, "cuda"), ("7.0", "rocm")])
def test_a_card_that_the_catalogue_lacks_is_known_by_its_memory(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, kind: str
) -> None:
    found = card_here(monkeypatch, "Imaginary 9999", 20 * GIB, hip)
    assert (found.name, found.kind, found.bf16_dense_tflops) == ("here", kind, None)
    assert 0 <= 20 * GIB - usable_bytes(found) < MIB


def test_a_name_of_the_catalogue_with_other_memory_is_another_card(monkeypatch: pytest.MonkeyPatch) -> None:
    found = card_here(monkeypatch, "NVIDIA GeForce RTX 4090", 48 * GIB)
    assert found.bf16_dense_tflops is None
    assert 0 <= 48 * GIB - usable_bytes(found) < MIB


def test_a_cpu_has_what_is_free_and_what_this_process_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "host_memory_bytes", lambda: (16 * GIB, 4 * GIB))
    monkeypatch.setattr(forecast, "peak_host_bytes", lambda: 2 * GIB)
    found = device_here("cpu")
    assert found is not None
    assert (found.name, found.kind, usable_bytes(found)) == ("here", "cpu", 6 * GIB)


def test_a_cpu_has_no_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "host_memory_bytes", lambda: (5 * GIB, 4 * GIB))
    monkeypatch.setattr(forecast, "peak_host_bytes", lambda: 2 * GIB)
    found = device_here("cpu")
    assert found is not None
    assert usable_bytes(found) == 5 * GIB


def test_this_machine() -> None:
    found = device_here("cpu")
    assert found is not None
    assert 0 < usable_bytes(found) <= host_memory_bytes()[0]


def test_apple_silicon_shares_the_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_devices", lambda: [torch.device("mps"), torch.device("cpu")])
    monkeypatch.setattr(forecast, "host_memory_bytes", lambda: (32 * GIB, 20 * GIB))
    monkeypatch.setattr(forecast, "peak_host_bytes", lambda: 4 * GIB)
    found = device_here("auto")
    assert found is not None
    assert (found.name, found.kind, found.memory_gb) == ("here", "mps", 24)
    assert usable_bytes(found) < 24 * GIB


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_devices", lambda: [torch.device("cpu")])
    with pytest.raises(Refused, match="there is no mps device here"):
        device_here("mps")
