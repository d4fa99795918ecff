"""From a run to one file: where it is, what is refused, and that nothing is left of what is not proved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from foretune.core.errors import Refused, UserError
from foretune.training.for_tools import adapter_file
from foretune.training.for_tools.export_file import export_file
from foretune.training.train import Trained
from tests.training.short_runs import METHODS, short_run

TinyPipeline = Callable[..., Path]


def trained_run(folder: Path, work: Path, method: str) -> Trained:
    run = short_run(
        folder, work, METHODS[method], optimizer={"lr": 2e-2}, validate={"num_held_out": 0}, train={"steps": 1}
    )
    assert run.record.outcome.status == "finished"
    return run


def test_an_adapter_for_each_program(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    run = trained_run(tiny_pipeline("flux"), tmp_path, "lora").run
    comfyui = export_file(run, tmp_path / "out", "comfyui", torch.bfloat16)
    assert comfyui.path == tmp_path / "out" / "short-lora-comfyui.safetensors"
    assert comfyui.proof.holds
    assert "ComfyUI/models/loras" in comfyui.how_to_load
    file = load_file(comfyui.path)
    assert "transformer.transformer_blocks.0.attn.to_q.lora_A.weight" in file
    assert {t.dtype for name, t in file.items() if not name.endswith("alpha")} == {torch.bfloat16}
    kohya = export_file(run, tmp_path / "mine.safetensors", "kohya")
    assert kohya.path == tmp_path / "mine.safetensors"
    assert "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight" in load_file(kohya.path)
    with safe_open(kohya.path, framework="pt") as opened:
        assert opened.metadata()["modelspec.title"] == "short"
        assert opened.metadata()["modelspec.resolution"] == "32x32"
    with pytest.raises(UserError, match=r"mine\.safetensors exists"):
        export_file(run, tmp_path / "mine.safetensors", "comfyui")
    with pytest.raises(Refused, match=r"A single file is a whole model.* --merge --format single-file"):
        export_file(run, tmp_path / "out", "single-file")
    with pytest.raises(Refused, match=r"the format kohya is of adapters\. Run: .* --merge --format single-file"):
        export_file(run, tmp_path / "out", "kohya", merge=True)


def test_a_whole_model_and_a_merged_adapter(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline("sd1")
    full = trained_run(folder, tmp_path / "full", "full").run
    exported = export_file(full, tmp_path / "out", "single-file")
    assert exported.proof.holds
    assert exported.how_to_load == "  Copy it to ComfyUI/models/checkpoints."
    weights = load_file(full.checkpoints / "step-000000001" / "weights.safetensors")
    file = load_file(exported.path)
    assert torch.equal(file["model.diffusion_model.input_blocks.0.0.weight"], weights["conv_in.weight"])
    with pytest.raises(Refused, match=r"no adapter for comfyui\. Run: .* --format single-file"):
        export_file(full, tmp_path / "other", "comfyui")
    adapter = trained_run(folder, tmp_path / "lora", "lora").run
    merged = export_file(adapter, tmp_path / "merged.safetensors", "single-file", merge=True)
    assert merged.proof.holds
    changed = load_file(merged.path)
    query = "model.diffusion_model.middle_block.1.transformer_blocks.0.attn1.to_q.weight"
    assert not torch.equal(changed[query], file[query])


def test_control_a_file_that_is_not_proved_is_not_kept(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if alpha had been forgotten: the proof reads what is on disk."""

    def forgets_alpha(tensors: dict[str, Any], path: Path, **options: Any) -> None:
        save_file({n: torch.ones(()) if n.endswith("alpha") else t for n, t in tensors.items()}, path, **options)

    monkeypatch.setattr(adapter_file, "save_file", forgets_alpha)
    run = trained_run(tiny_pipeline("sdxl"), tmp_path, "lora").run
    exported = export_file(run, tmp_path / "out", "comfyui")
    assert not exported.proof.holds
    assert list((tmp_path / "out").iterdir()) == []
