"""The whole workflow on a GPU: from images in a folder to shared files, with each way to keep weights and states.

Nothing here compares bits of two runs: on a healthy GPU sums may differ from one run to the next.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretune as ft
from foretune.api.run import Run
from foretune.record.run_directory import RunDirectory
from foretune.training.devices import UNTESTED_ON_MPS
from tests.matrix.running import as_if_killed_after_the_first_step
from tests.training.encoded_runs import pictures
from tests.training.short_runs import Recording, events_of, losses_of, short_mapping

pytestmark = pytest.mark.gpu
TinyPipeline = Callable[..., Path]

_CHECKPOINTED = {"gradient_checkpointing": 1.0}
_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("sdxl", {}),
    "LoRA on an int8 base, block swap": (
        "flux",
        {"quantize": {"denoiser": "int8", "text_encoders": "int8"}, "levers": {**_CHECKPOINTED, "block_swap": 2}},
    ),
    "LoRA on an nf4 base, activation offload": (
        "flux",
        {"quantize": {"denoiser": "nf4"}, "levers": {**_CHECKPOINTED, "activation_offload": True}},
    ),
    "full, optimizer offload, moving average": (
        "sd3",
        {
            "method": {"kind": "full"},
            "train": {"ema": {"decay": 0.9}},
            "levers": {"optimizer_offload": True, "ema_offload": True},
        },
    ),
    "full, bf16 weights, fused backward": (
        "flux",
        {
            "method": {"kind": "full"},
            "train": {"weight_dtype": "bf16", "max_grad_norm": None},
            "levers": {"fused_backward": True},
        },
    ),
    "full DDPM in fp16, saved beside the steps": (
        "ddpm",
        {"method": {"kind": "full"}, "train": {"precision": "fp16"}, "save": {"asynchronous": True}},
    ),
}
_ON_TWO: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA, DDP": ("flux", {"method": {"kind": "lora", "rank": 4}}),
    "full, FSDP2": ("sd3", {"method": {"kind": "full"}, "parallel": {"sharding": "full"}}),
}


def _trained(model: Path, work: Path, **sections: Any) -> tuple[Run, Recording]:
    """A run of three steps with validation and checkpoints, from images and captions in a folder."""
    observer = Recording()
    mapping = _mapping(model, work, **sections)
    return ft.train(mapping, runs=work / "runs", observer=observer), observer


def _mapping(model: Path, work: Path, **sections: Any) -> dict[str, Any]:
    data = {
        "kind": "folder",
        "path": str(pictures(work / "pictures")),
        "resolution": 64,
        "held_out": 0.25,
        "cache_dir": str(work / "cache"),
    }
    fixed = {"max_text_tokens": 16} if (model / "transformer").is_dir() else {}
    usual: dict[str, dict[str, Any]] = {
        "train": {"precision": "bf16"},
        "validate": {"num_held_out": 2, "every": 3, "prompts": ["a red circle"], "num_inference_steps": 2},
        "save": {"every": 1, "keep": 3},
        "parallel": {"device": "cuda"},
    }
    merged = {name: {**usual.get(name, {}), **sections.get(name, {})} for name in usual.keys() | sections.keys()}
    return short_mapping(model, work, **{**merged, "data": {**data, **fixed}})


def _check_training(run: Run, observer: Recording) -> None:
    losses = losses_of(RunDirectory.open(run.path))
    assert run.status == "finished"
    assert len(losses) == 3
    assert all(math.isfinite(loss) for loss in losses)
    assert run.num_changed_tensors, "weights changed"
    assert observer.of("saved") == [1, 2, 3]
    assert [step for step, loss, samples in observer.of("validated") if loss is not None and samples] == [0, 3]
    assert UNTESTED_ON_MPS not in observer.of("warning")
    assert run.record is not None
    peak_bytes = run.record.measured.peak_device_bytes
    assert peak_bytes is not None
    assert peak_bytes > 0


@pytest.mark.slow
@pytest.mark.takes_turns
@pytest.mark.parametrize("form", _FORMS)
def test_from_images_to_shared_files(form: str, tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    family, sections = _FORMS[form]
    run, observer = _trained(tiny_pipeline(family), tmp_path, **sections)
    _check_training(run, observer)

    copy = as_if_killed_after_the_first_step(RunDirectory.open(run.path), tmp_path)
    resumed = ft.resume(copy.path)
    assert (resumed.status, events_of(copy, "saved")[-1]["step"]) == ("finished", 3)

    (evaluated,) = ft.evaluate(run.path, num_prompts=1, seeds=1, steps=2, held_out=2, metrics=("loss",))
    assert evaluated.settings["device"] == "cuda"
    is_adapter = sections.get("method", {}).get("kind", "lora") == "lora"
    exported = ft.export(run.path, tmp_path / "exported")
    assert exported.proof.holds, exported.proof
    if is_adapter:
        assert ft.export(run.path, tmp_path / "comfyui.safetensors", format="comfyui").proof.holds
    quantize = sections.get("quantize", {})
    written = [tmp_path / "exported"]
    sheet = ft.sample(
        str(tiny_pipeline(family)),
        adapters=written if is_adapter else [],
        full=[] if is_adapter else written,
        output=tmp_path / "sheet.png",
        steps=2,
        size=64,
        text_tokens=16 if family in ("flux", "sd3") else None,
        quantize=quantize.get("denoiser", "none"),
        quantize_text_encoders=quantize.get("text_encoders", "none"),
    )
    assert len(sheet.columns) == 2
    assert (tmp_path / "sheet.png").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.takes_turns
@pytest.mark.real_gpu("kernels that torch.compile generates")
def test_a_compiled_run(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    run, observer = _trained(tiny_pipeline("flux"), tmp_path, levers={**_CHECKPOINTED, "compile": True})
    _check_training(run, observer)


@pytest.mark.slow
@pytest.mark.takes_turns
@pytest.mark.parametrize("form", _ON_TWO)
def test_two_gpus(form: str, tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("takes two GPUs")
    family, sections = _ON_TWO[form]
    parallel = {"devices": 2, **sections.get("parallel", {})}
    run, _ = _trained(tiny_pipeline(family), tmp_path, **{**sections, "parallel": parallel})
    assert run.status == "finished"
    assert len(losses_of(RunDirectory.open(run.path))) == 3
    copy = as_if_killed_after_the_first_step(RunDirectory.open(run.path), tmp_path)
    assert ft.resume(copy.path).status == "finished"
    assert ft.export(run.path, tmp_path / "exported").proof.holds
