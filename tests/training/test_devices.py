"""The device that was asked for, or a refusal that names what there is."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from foretune.accelerator.memory import peak_allocated_bytes
from foretune.choices.experiment import Experiment
from foretune.choices.running import Parallel
from foretune.core.errors import Refused
from foretune.core.observer import Observer
from foretune.core.units import MIB
from foretune.training import devices, launching
from foretune.training.devices import (
    available_devices,
    choose_device,
    device_warnings,
    peak_host_bytes,
    refuse_absent_devices,
    refuse_what_the_device_cannot,
)
from foretune.training.launching import launch_parts


def test_the_cpu_is_always_there_and_last() -> None:
    assert available_devices()[-1] == torch.device("cpu")
    assert choose_device("cpu") == torch.device("cpu")


def test_accelerators_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert available_devices() == [torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")]
    assert choose_device("auto") == torch.device("cuda", 0)
    assert choose_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_devices", lambda: [torch.device("mps"), torch.device("cpu")])
    with pytest.raises(Refused, match=r"there is no cuda device here\. Present: cpu, mps\. Run: foretune doctor"):
        choose_device("cuda")


def test_no_more_processes_than_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised before any is started; a CPU is shared."""
    monkeypatch.setattr(devices, "available_devices", lambda: [torch.device("cuda", 0), torch.device("cpu")])
    monkeypatch.setattr(launching, "launch", lambda *_: pytest.fail("started"))
    for device in ("auto", "cuda"):
        parallel = Parallel.model_validate({"devices": 2, "device": device})
        with pytest.raises(Refused, match=r"devices=2: .* torch sees 1 of type cuda\. Nearest: devices=1"):
            launch_parts("Sampling", parallel, "worker", {}, Observer())
    refuse_absent_devices(Parallel.model_validate({"devices": 2, "device": "cpu"}))
    monkeypatch.setattr(devices, "available_devices", lambda: [torch.device("cuda", n) for n in range(2)])
    refuse_absent_devices(Parallel.model_validate({"devices": 2}))


def test_peaks() -> None:
    assert peak_allocated_bytes(torch.device("cpu")) is None
    before = peak_host_bytes()
    assert 10 * 2**20 < before < 2**40
    block = torch.ones(64 * 2**20)  # 256 MiB, written to
    assert peak_host_bytes() >= before
    assert peak_host_bytes() >= block.nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no other high-water mark")
def test_a_peak_is_not_inherited_from_a_large_parent() -> None:
    """A bench measures in processes that it starts itself, and is larger than some of them."""
    asked = "from foretune.training.devices import peak_host_bytes; print(peak_host_bytes())"
    # Larger than a process that has imported torch, and written to while the other one is started.
    held = np.ones(768 * 2**20, dtype=np.uint8)
    result = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert 10 * 2**20 < int(result.stdout) < held.nbytes


@pytest.mark.parametrize(("capability", "has"), [((8, 6), False), ((8, 9), True), ((9, 0), True), ((12, 0), True)])
@pytest.mark.parametrize("kind", ["float8-dynamic", "float8-training"])
def test_float8_products_on_a_gpu_that_is_too_old(
    kind: str, capability: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {"model": "m", "method": {"kind": "lora"}, "data": {"kind": "shapes"}, "train": {"steps": 1}}
    experiment = Experiment.model_validate({**form, "quantize": {"denoiser": kind}})
    stored = Experiment.model_validate({**form, "quantize": {"denoiser": "float8"}})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA GeForce RTX 3090")
    monkeypatch.setattr(torch.version, "hip", None)
    cuda = torch.device("cuda", 0)
    refuse_what_the_device_cannot(stored, "flux", cuda)
    if has:
        refuse_what_the_device_cannot(experiment, "flux", cuda)
        return
    with pytest.raises(Refused, match=r"RTX 3090 is older\. Nearest: quantize\.denoiser=float8, which only stores"):
        refuse_what_the_device_cannot(experiment, "flux", cuda)


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_tf32_on_a_gpu_that_is_too_old(capability: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment.model_validate(
        {
            "model": "m",
            "method": {"kind": "lora"},
            "data": {"kind": "shapes"},
            "train": {"steps": 1, "precision": "tf32"},
        }
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    cuda = torch.device("cuda", 0)
    if has:
        refuse_what_the_device_cannot(experiment, "flux", cuda)
        return
    with pytest.raises(Refused, match=r"Tesla T4 is older than tf32.*Nearest: train\.precision=fp32"):
        refuse_what_the_device_cannot(experiment, "flux", cuda)


@pytest.mark.parametrize(
    ("precision", "capability", "hip", "is_slow"),
    [
        ("bf16", (7, 5), None, True),
        ("fp16", (7, 5), None, False),
        ("bf16", (8, 0), None, False),
        ("bf16", (7, 5), "7.1", False),  # AMD numbers its architectures otherwise
    ],
)
def test_bf16_on_a_gpu_without_it_is_warned_about(
    precision: str, capability: tuple[int, int], hip: str | None, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment.model_validate(
        {
            "model": "m",
            "method": {"kind": "lora"},
            "data": {"kind": "shapes"},
            "train": {"steps": 1, "precision": precision},
        }
    )
    properties = SimpleNamespace(name="Tesla T4", total_memory=14920 * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    found = device_warnings(experiment, torch.device("cuda", 0))
    assert len(found) == is_slow
    if is_slow:
        assert "Tesla T4 has no bf16 units" in found[0]
        assert "8.1 instead of 65 TFLOPS" in found[0]
        assert "train.precision=fp16" in found[0]


def test_no_gpu_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_devices", lambda: [torch.device("cpu")])
    text = devices.accelerators_text()
    assert text.startswith("No GPU found: this torch ")
    assert "run on the CPU" in text
    assert "Planning needs no GPU: foretune plan MODEL --on rtx-4090" in text


@pytest.mark.parametrize(
    ("cuda", "hip", "why"),
    [("13.0", None, "sees no NVIDIA GPU"), (None, "7.0", "sees no AMD GPU"), (None, None, "MPS")],
)
def test_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, cuda: str | None, hip: str | None, why: str) -> None:
    monkeypatch.setattr(devices, "available_devices", lambda: [torch.device("cpu")])
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert why in devices.accelerators_text()


def test_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [torch.device("cuda", 0), torch.device("mps"), torch.device("cpu")]
    monkeypatch.setattr(devices, "available_devices", lambda: found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA L4")
    expected = ["GPU found: NVIDIA L4 (cuda:0), Apple GPU (mps)", devices.UNTESTED_ON_MPS]
    assert devices.accelerators_text().splitlines() == expected


@pytest.mark.parametrize(("pages", "share"), [(True, 0.75), (False, None)])
def test_the_share_of_a_card_that_is_reserved(
    monkeypatch: pytest.MonkeyPatch, pages: bool, share: float | None
) -> None:
    monkeypatch.setattr(devices, "nvidia_pages_to_host", lambda: pages)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=8 * 2**30))
    monkeypatch.setattr(devices, "reserved_bytes", lambda _: 6 * 2**30)
    assert devices.reserved_share_of(torch.device("cuda", 0))() == share
    assert devices.reserved_share_of(torch.device("cpu"))() is None


@pytest.mark.parametrize("pages", [True, False])
def test_what_looks_for_the_largest_that_fits_fails_on_a_full_card(
    monkeypatch: pytest.MonkeyPatch, pages: bool
) -> None:
    limited: list[tuple[float, torch.device]] = []
    monkeypatch.setattr(devices, "nvidia_pages_to_host", lambda: pages)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *arguments: limited.append(arguments))
    card = torch.device("cuda", 0)
    for device in (card, torch.device("cpu")):
        devices.fail_when_full(device)
    assert limited == ([(1.0, card)] if pages else [])
