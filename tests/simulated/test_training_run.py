"""A whole training on the simulated GPU leaves no finding, and its record names the device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretune as ft
from foretune.accelerator.timing import EventMark

pytestmark = pytest.mark.simulated


def lora(model: Path) -> dict[str, Any]:
    return {
        "model": str(model),
        "method": {"kind": "lora", "rank": 4},
        "data": {"kind": "shapes", "resolution": 64, "num_samples": 8},
        "train": {"steps": 2, "batch_size": 1, "precision": "bf16"},
        "validate": {"num_held_out": 2},
    }


def test_a_lora_run_trains_on_the_simulated_gpu(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    run = ft.train(lora(tiny_pipeline("flux", "dev")), runs=tmp_path / "runs")
    assert run.status == "finished"
    assert run.measured is not None
    assert run.measured.peak_device_bytes == simulated_gpu.memory_stats(0)["allocated_bytes.all.peak"]


def test_steps_are_timed_by_the_clock_of_the_device(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated device has the host's time, so it gets another one here: 100 s between two marks."""
    monkeypatch.setattr(EventMark, "elapsed_s", lambda begin, end: 100.0)
    run = ft.train(lora(tiny_pipeline("flux", "dev")), runs=tmp_path / "runs")
    assert run.measured is not None
    assert run.measured.median_step_s is not None
    assert run.measured.median_step_s >= 100


def test_prompts_are_sampled_on_the_device(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    validate = {"num_held_out": 0, "prompts": ["a red circle"], "num_inference_steps": 1}
    train = {"steps": 1, "batch_size": 1, "precision": "bf16"}
    asked = {**lora(tiny_pipeline("flux", "dev")), "train": train, "validate": validate}
    run = ft.train(asked, runs=tmp_path / "runs")
    assert run.status == "finished"
    assert run.record is not None
    assert len(list((run.path / "samples").glob("*.png"))) >= 1, run.record.warnings
