"""The device that a run would take, as the catalogue knows it, with the memory it really has."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch

from foretune import catalog
from foretune.api.live_steps import LiveSteps
from foretune.catalog.devices import Device
from foretune.config.reading import understand
from foretune.config.target import read_target
from foretune.core.errors import Refused
from foretune.core.observer import Observer
from foretune.core.units import GIB, MIB
from foretune.planner.asking import PlanRequest
from foretune.planner.overheads import overhead_for, usable_bytes
from foretune.planner.verdict import Ends, ErrorShares
from foretune.record.machine import host_memory_bytes
from foretune.training import devices, forecast
from foretune.training.forecast import device_here


def test_a_repository_outside_of_the_catalogue_is_planned_from_its_files(
    monkeypatch: pytest.MonkeyPatch, tiny_pipeline: Callable[..., Path]
) -> None:
    """Only its files tell its architecture; until then a plan is no reason not to train."""
    asked = read_target("owner/tiny", ["train.precision=fp32", "data.resolution=32"], is_synthetic=True)
    assert (asked.model.kind, asked.model.family) == ("hub", None)
    monkeypatch.setattr(forecast, "locate", lambda model: (tiny_pipeline("flux"), f"of {model.repo}"))
    messages: list[str] = []
    plan = forecast.plan_here(asked, LiveSteps(Observer()), messages.append)
    assert plan is not None, messages
    assert plan.model == "owner/tiny"


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


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3", "Imaginary 9999"])
def test_no_process_takes_less_than_its_tensors_on_a_card_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The driver's part is not in torch's total, so nothing of it may be taken off the low end."""
    found = card_here(monkeypatch, name, 20 * GIB)
    ends = Ends(overhead_for(found), ErrorShares(0, 0), is_headless=True)
    assert ends.low(MIB) >= MIB
    context = overhead_for(found).context
    assert (ends.low(0), ends.most_beside_bytes) == (context.low, context.high)


def test_whatever_a_forecast_runs_into_does_not_keep_a_run_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> NoReturn:
        raise ValueError("Height (40) cannot be greater than `pos_embed_max_size`: 24")

    asked = understand(
        {"model": "flux.1-dev", "method": {"kind": "lora"}, "data": {"kind": "shapes"}, "train": {"steps": 1}},
        source=None,
    )
    monkeypatch.setattr(forecast, "plan_question", broken)
    reported: list[str] = []
    device = catalog.device("rtx-4090")
    assert forecast._plan(asked, PlanRequest(target="m"), device, SimpleNamespace(), reported.append) is None
    (text,) = reported
    assert "ValueError: Height (40) cannot be greater" in text


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
