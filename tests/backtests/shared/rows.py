"""Shared measurements as they would arrive, made without a bench."""

from dataclasses import replace
from typing import Any

from foretune.backtests.shared.row_format import (
    SharedEnvironment,
    SharedMeasured,
    SharedPlan,
    SharedRow,
    id_of,
    public_experiment,
)
from foretune.choices.experiment import Experiment

GIB = 2**30


def environment(**changes: Any) -> SharedEnvironment:
    content = {
        "device_kind": "cuda",
        "device": "NVIDIA GeForce RTX 4090",
        "device_bytes": 24_564 * 2**20,
        "num_threads": 8,
        "foretune": "0.1.0",
        "python": "3.11.7",
        "system": "Linux x86_64",
        "torch": "2.13.0+cu130",
        "accelerator_version": "13.0",
        "driver": "580.65.06",
        "packages": {"diffusers": "0.42.1"},
    }
    return SharedEnvironment.model_validate({**content, **changes})


def measured(**changes: Any) -> SharedMeasured:
    content = {
        "num_runs": 3,
        "num_steps": 20,
        "samples_per_step": 2,
        "step_s": 1.25,
        "step_low_s": 1.2,
        "step_high_s": 1.3,
        "allocated_bytes": 7 * GIB,
        "reserved_bytes": 8 * GIB,
        "process_bytes": None,
        "context_bytes": None,
        "num_params": 2_567_463_684,
        "num_trained_params": 23_224_320,
        "height_px": 1024,
        "width_px": 1024,
        "num_frames": 1,
        "hardware_flops": 6e13,
        "peak_flops_per_s": 1.65e14,
        "is_peak_measured": False,
        "is_synthetic": True,
        "has_random_weights": True,
    }
    return SharedMeasured.model_validate({**content, **changes})


def experiment(model: str = "sdxl-unet", **train: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "model": model,
            "method": {"kind": "lora", "rank": 16},
            "data": {"kind": "shapes"},
            "train": {"steps": 1, "batch_size": 2, "precision": "bf16", **train},
            "levers": {"gradient_checkpointing": 1.0},
        }
    )


PLAN = SharedPlan(
    allocated_bytes=7 * GIB,
    reserved_bytes=8 * GIB,
    process_low_bytes=8 * GIB,
    process_bytes=9 * GIB,
    process_high_bytes=10 * GIB,
    step_s=1.5,
    step_low_s=1.0,
    step_high_s=2.0,
)


def row(**changes: Any) -> SharedRow:
    """A row whose id belongs to its content; `changes` are fields of `SharedRow`."""
    content = {
        "row_id": "",
        "model": "sdxl-unet",
        "experiment": experiment(),
        "measured": measured(),
        "plan": PLAN,
        "environment": environment(),
        "notes": "synthetic data; random weights",
    }
    made = SharedRow(**{**content, **changes})
    return replace(made, row_id=id_of(public_experiment(made.experiment), made.measured, made.environment))
