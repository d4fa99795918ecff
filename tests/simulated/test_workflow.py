"""From training to shared files on a card where the model does not fit in fp32: every step of it runs there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import foretune as ft
from foretune.core.units import MIB
from foretune.models.locating import open_family
from foretune.record.run_directory import RunDirectory
from foretune.training.exporting import ExportRequest, export
from foretune.training.reload_check import check
from foretune.training.sampling_setup import SamplingChoice, sampling_setup
from tests.matrix.running import as_if_killed_after_the_first_step
from tests.simulated.wide_models import widened

pytestmark = [pytest.mark.simulated, pytest.mark.takes_turns]
TinyPipeline = Callable[..., Path]

QUANTIZED = {"denoiser": "int8", "text_encoders": "int8"}


class Card:
    """The simulated device with little memory."""

    def __init__(self, device: Any, limit_bytes: int) -> None:
        self._device, self.limit_bytes = device, limit_bytes
        device.set_limit(limit_bytes)

    def peak_bytes(self) -> int:
        """The most that was allocated since the last call."""
        torch.cuda.synchronize()
        peak = int(self._device.memory_stats(0)["allocated_bytes.all.peak"])
        torch.cuda.reset_peak_memory_stats()
        return peak


def dense_bytes(folder: Path, dtype: torch.dtype) -> int:
    return sum(p.nbytes for p in open_family(folder).denoiser_on_meta(dtype).parameters())


def trained_and_resumed(folder: Path, work: Path, **sections: Any) -> Path:
    experiment = {
        "model": str(folder),
        "method": {"kind": "lora", "rank": 4, "alpha": 10},
        "data": {
            "kind": "shapes",
            "resolution": 64,
            "num_samples": 8,
            "max_text_tokens": None if "unet" in {p.name for p in folder.iterdir()} else 16,
            "held_out": 0.25,
            "cache_dir": str(work / "cache"),
        },
        "train": {"steps": 2, "batch_size": 1, "precision": "bf16"},
        "optimizer": {"lr": 1e-2},
        "validate": {"num_held_out": 1, "prompts": ["a red circle"], "num_inference_steps": 2},
        "save": {"every": 1},
        **sections,
    }
    trained = ft.train(experiment, runs=work / "runs")
    assert trained.status == "finished"
    copy = as_if_killed_after_the_first_step(RunDirectory.open(trained.path), work)
    resumed = ft.resume(copy.path)
    assert resumed.status == "finished"
    return resumed.path


def evaluated(run: Path) -> dict[str, Any]:
    (found,) = ft.evaluate(run, num_prompts=2, seeds=1, steps=2, held_out=2, metrics=("loss",))
    assert found.score("loss", "run") is not None or found.scores
    return dict(found.settings)


@pytest.fixture
def limited(simulated_gpu: Any) -> Any:
    yield lambda limit_bytes: Card(simulated_gpu, limit_bytes)
    simulated_gpu.set_limit(8192 * MIB)


def test_a_model_is_sampled_in_half_precision_if_nobody_says_otherwise(simulated_gpu: Any) -> None:
    setup = sampling_setup(SamplingChoice())
    assert (setup.device.type, setup.precision) == ("cuda", "bf16")
    assert sampling_setup(SamplingChoice(device="cpu")).precision == "fp32"


def test_flux_lora_on_a_quantised_base(
    limited: Callable[[int], Card],
    tiny_pipeline: TinyPipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    report_figure: Callable[[str], None],
) -> None:
    """The dense base does not fit in bf16: training, evaluating, sampling and the check of the export take int8."""
    folder = widened(tiny_pipeline("flux", "dev"), "flux", tmp_path / "base")
    dense = dense_bytes(folder, torch.bfloat16)
    card = limited(dense)
    monkeypatch.setenv("SIMACCEL_MEMORY_MIB", str(dense // MIB))
    run = trained_and_resumed(folder, tmp_path, quantize=QUANTIZED)
    peaks = {"training": card.peak_bytes()}
    settings = evaluated(run)
    assert (settings["device"], settings["precision"], settings["quantize"]) == ("cuda", "bf16", QUANTIZED)
    peaks["evaluating"] = card.peak_bytes()
    exported = ft.export(run, tmp_path / "adapter")
    assert card.peak_bytes() < dense / 100, "the parent of the clean process loads nothing"
    assert exported.proof.num_consumed == exported.proof.num_tensors > 0
    assert exported.proof.max_pixel_difference == 0, "compared in a process with as little memory"
    for name in ("comfyui", "kohya"):
        assert ft.export(run, tmp_path / f"{name}.safetensors", format=name).proof.holds
    assert card.peak_bytes() < dense / 100, "the base is not loaded"
    picture = ft.sample(
        str(folder),
        adapters=[tmp_path / "adapter"],
        output=tmp_path / "sheet.png",
        steps=2,
        size=64,
        text_tokens=16,
        quantize="int8",
        quantize_text_encoders="int8",
    )
    assert [name.split()[0] for name in picture.columns] == ["base", "adapter"]
    peaks["sampling"] = card.peak_bytes()
    assert max(peaks.values()) < dense
    report_figure(
        ", ".join(f"{name} {peak / dense:.2f}" for name, peak in peaks.items()) + " of the dense base in bf16"
    )


def test_sdxl_lora(
    limited: Callable[[int], Card],
    tiny_pipeline: TinyPipeline,
    tmp_path: Path,
    report_figure: Callable[[str], None],
) -> None:
    """The base fits in bf16, and not in fp32, which is what nobody asked for."""
    folder = widened(tiny_pipeline("sdxl"), "sdxl", tmp_path / "base")
    dense = dense_bytes(folder, torch.float32)
    card = limited(dense)
    run = trained_and_resumed(folder, tmp_path, levers={"vae_tiling": True})
    peaks = {"training": card.peak_bytes()}
    settings = evaluated(run)
    assert (settings["device"], settings["precision"]) == ("cuda", "bf16")
    assert "quantize" not in settings
    peaks["evaluating"] = card.peak_bytes()
    # The other process in this one: its models must fit one after the other.
    proof = export(RunDirectory.open(run), tmp_path / "adapter", reload=check).proof
    assert (proof.holds, proof.max_pixel_difference) == (True, 0), proof
    merged = export(RunDirectory.open(run), tmp_path / "merged", ExportRequest(merge=True), reload=check).proof
    assert (merged.holds, merged.max_pixel_difference) == (True, 0), merged
    peaks["checking"] = card.peak_bytes()
    assert peaks["checking"] > dense_bytes(folder, torch.bfloat16), "images are compared on the card"
    for name in ("comfyui", "kohya"):
        assert ft.export(run, tmp_path / f"{name}.safetensors", format=name).proof.holds
    assert ft.export(run, tmp_path / "whole.safetensors", format="single-file", merge=True).proof.holds
    assert card.peak_bytes() < dense / 100, "files are made on the host"
    ft.sample(
        str(folder),
        adapters=[tmp_path / "adapter"],
        full=[tmp_path / "merged"],
        output=tmp_path / "sheet.png",
        steps=2,
        size=64,
    )
    peaks["sampling"] = card.peak_bytes()
    assert max(peaks.values()) < dense
    report_figure(", ".join(f"{name} {peak / dense:.2f}" for name, peak in peaks.items()) + " of the base in fp32")
