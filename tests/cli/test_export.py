"""`foretune export --merge`: where it writes, and what it says of a run on a quantised base."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune.training import exporting
from tests.cli.conftest import Foretune
from tests.step.methods.kinds import KINDS
from tests.training.short_runs import short_run

TinyPipeline = Callable[..., Path]


def test_a_merged_adapter_has_a_folder_of_its_own(
    foretune: Foretune, tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = exporting.ExportProof(num_tensors=2, num_consumed=2, max_pixel_difference=0.0)
    monkeypatch.setattr(exporting, "_prove", lambda *_: proof)
    sections: dict[str, Any] = {"train": {"steps": 1, "precision": "bf16"}, "quantize": {"denoiser": "int8"}}
    run = short_run(tiny_pipeline("flux"), tmp_path, KINDS["lora"], validate={"num_held_out": 0}, **sections).run
    for arguments, kind in (((), "export"), (("--merge",), "merged")):
        answer = foretune("export", str(run.path), *arguments)
        assert answer.returncode == 0, answer.stderr
        assert f"Exported {run.path / kind}. To use it:" in answer.stdout
        assert "It was trained on a base in int8." in answer.stdout
    assert (run.path / "merged" / "model_index.json").is_file()
    assert (run.path / "export" / "pytorch_lora_weights.safetensors").is_file()


def test_formats_of_other_programs(foretune: Foretune, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    run = short_run(
        tiny_pipeline("sdxl"), tmp_path, KINDS["lora"], validate={"num_held_out": 0}, train={"steps": 1}
    ).run
    answer = foretune("export", str(run.path), "--format", "comfyui")
    assert answer.returncode == 0, answer.stderr
    assert "64 of 64 trained layers have the trained weights" in answer.stdout
    assert "ComfyUI/models/loras" in answer.stdout
    assert (run.path / "comfyui" / "short-lora-comfyui.safetensors").is_file()
    refused = foretune("export", str(run.path), "--format", "single-file")
    assert refused.returncode != 0
    assert "--merge --format single-file" in refused.stderr
    unknown = foretune("export", str(run.path), "--format", "onnx")
    assert unknown.returncode == 2
