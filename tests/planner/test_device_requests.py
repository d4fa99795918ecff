"""`--on`: cards by any of their names, by their memory, and those of this machine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretune import catalog
from foretune.catalog.devices import Device
from foretune.choices.experiment import Experiment
from foretune.core.errors import AmbiguousName, UserError
from foretune.core.units import GIB, MIB
from foretune.planner import advice, device_requests
from foretune.planner.asking import devices_named
from foretune.planner.device_requests import cpu_here, devices_here
from foretune.planner.knobs import SettingChange, recompute
from foretune.planner.overheads import overhead_for, usable_bytes
from foretune.planner.planning import Footprint
from foretune.record.accelerators import Accelerator
from tests.planner.asked_plans import plan


def named(text: str) -> tuple[list[Device], list[str]]:
    notes: list[str] = []
    return devices_named(text, notes.append), notes


def test_an_exact_name_needs_no_words() -> None:
    assert named("rtx-4090,T4") == ([catalog.device("rtx-4090"), catalog.device("t4")], [])


def test_another_name_is_resolved_and_said() -> None:
    found, notes = named("4090, h100")
    assert [device.name for device in found] == ["rtx-4090", "h100-sxm"]
    assert notes == ["'4090' resolved to rtx-4090", "'h100' resolved to h100-sxm (also: h100-pcie, h100-sxm-96gb)"]


def test_two_names_of_one_card_are_one() -> None:
    assert [device.name for device in named("rtx-4090,RTX 4090")[0]] == ["rtx-4090"]


def test_an_ambiguous_name_is_not_chosen_for_the_user() -> None:
    with pytest.raises(AmbiguousName, match="rtx-3080-10gb, rtx-3080-12gb"):
        named("l4,3080")


def test_a_card_of_some_memory_has_the_generic_overheads() -> None:
    (card,), notes = named("16GiB")
    generic = overhead_for(card)
    assert (card.kind, card.memory_bytes) == ("cuda", 16 * GIB)
    assert usable_bytes(card) == 16 * GIB - generic.driver.likely
    assert notes == ["16GiB: any CUDA card with this memory on PCIe 4.0 x16"]
    assert (card.bandwidth_gb_per_s, card.fp32_tflops, card.bf16_dense_tflops) == (None, None, None)


@pytest.mark.parametrize("typed", ["24GB", "24g", "24000 MB"])
def test_gb_is_as_sold_and_never_more_than_a_card_has(typed: str) -> None:
    (card,), (note,) = named(typed)
    assert note.endswith("with GB as 10^9 bytes (a card sold as 24GB has 24GiB)")
    assert card.memory_bytes == 24 * 10**9
    assert usable_bytes(card) < usable_bytes(catalog.device("rtx-4090"))


def test_a_plan_for_a_card_of_some_memory() -> None:
    found = plan("sd3-medium", on="24 gib", advice="none")
    assert (found.device, found.warnings) == ("24GiB", ())
    assert any(text.startswith("24GiB: driver and context") for text in found.assumptions)
    known = plan("sd3-medium", on="rtx-4090", advice="none")
    assert found.allocated_bytes == known.allocated_bytes


@pytest.mark.parametrize("text", ["9000GiB", "0GB"])
def test_a_size_that_no_card_has(text: str) -> None:
    with pytest.raises(UserError, match="no card has"):
        named(text)


def here(*found: Accelerator, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Device], list[str]]:
    monkeypatch.setattr(device_requests, "accelerators_here", lambda root: list(found))
    notes: list[str] = []
    return list(devices_here(notes.append)), notes


def test_here_is_the_card_that_the_driver_names(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Accelerator("NVIDIA GeForce RTX 3080", "cuda", 12288 * MIB)
    found, notes = here(card, card, monkeypatch=monkeypatch)
    assert [(device.name, device.reported_memory_mib) for device in found] == [("rtx-3080-12gb", 12288)]
    assert notes == ["here: NVIDIA GeForce RTX 3080 with 12.00 GiB, planned as rtx-3080-12gb"]


def test_a_card_of_a_windows_machine_pages_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Accelerator("NVIDIA GeForce RTX 3080", "cuda", 12288 * MIB)
    (on_linux,), _ = here(card, monkeypatch=monkeypatch)
    monkeypatch.setattr(device_requests, "nvidia_pages_to_host", lambda: True)
    (on_windows,), _ = here(card, monkeypatch=monkeypatch)
    (other,), _ = here(Accelerator("AMD Instinct MI300X OAM", "rocm", 206_141_652_992), monkeypatch=monkeypatch)
    (unknown,), _ = here(Accelerator("Imaginary", "cuda", 12288 * MIB), monkeypatch=monkeypatch)
    pages = [device.pages_to_host for device in (on_linux, on_windows, other, unknown)]
    assert pages == [False, True, False, True]
    too_large, small = (plan(model, on=[on_windows], advice="none") for model in ("flux.1-dev", "ddpm-cifar10-32"))
    (warning,) = too_large.warnings
    assert "moves memory to the host" in warning
    assert "Prefer No Sysmem Fallback" in warning
    assert (small.verdict, small.warnings) == ("fits", ())
    assert plan("flux.1-dev", on=[on_linux], advice="none").warnings == ()
    expandable = plan("ddpm-cifar10-32", on=[on_windows], advice="none", expandable_segments=True)
    assert (expandable.reserved_bytes, expandable.assumptions) == (small.reserved_bytes, small.assumptions)


def test_there_are_no_expandable_segments_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"model": "flux.1-dev", "method": {"kind": "lora"}, "data": {"kind": "shapes"}, "train": {"steps": 1}}
    found: Any = SimpleNamespace(experiment=Experiment.model_validate(asked))
    assert any(change.expandable for change in recompute(found))
    assert not any(change.expandable for change in recompute(found, has_expandable=False))
    looked_for: list[bool] = []

    def noted(found: Footprint, *, has_expandable: bool) -> list[SettingChange]:
        looked_for.append(has_expandable)
        return []

    monkeypatch.setattr(advice, "recompute", noted)
    card = catalog.device("rtx-3080-12gb")
    for pages in (False, True):
        plan("flux.1-dev", on=[card.model_copy(update={"pages_to_host": pages})], advice="first")
    assert looked_for == [True, False]


def test_here_is_a_card_that_the_catalogue_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    (card,), _ = here(Accelerator("NVIDIA Imaginary 9999", "cuda", 20 * GIB), monkeypatch=monkeypatch)
    assert (card.name, card.memory_bytes, card.fp32_tflops) == ("nvidia-imaginary-9999", 20 * GIB, None)


def test_here_is_unified_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    (chip,), _ = here(Accelerator("Apple M3", "mps", 24 * GIB), monkeypatch=monkeypatch)
    assert (chip.kind, chip.memory_gb) == ("mps", 24)


def test_here_is_the_cpu_with_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 2097152 kB\n", encoding="ascii")
    notes: list[str] = []
    (cpu,) = devices_here(notes.append, tmp_path)
    assert (cpu.kind, cpu.name) == ("cpu", "here")
    assert usable_bytes(cpu) == 2 * GIB
    assert notes == ["here: no accelerator found, so the CPU with the 2.00 GiB of memory that are free now"]


def test_here_is_an_amd_card_by_the_name_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    (card,), _ = here(Accelerator("AMD Instinct MI300X OAM", "rocm", 206_141_652_992), monkeypatch=monkeypatch)
    assert (card.name, card.kind) == ("mi300x", "rocm")


def test_free_memory_that_was_measured_has_no_spread() -> None:
    """The system's share is already in use: an estimate for a small step must not have a negative low end."""
    here = cpu_here(10 * GIB)
    assert usable_bytes(here) == 10 * GIB
    assert plan("ddpm-cifar10-32", on=[here], advice="none").process_low_bytes > 0
