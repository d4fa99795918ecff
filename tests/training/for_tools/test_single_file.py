"""Whole models in one file of the original layout: diffusers reads every tensor back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import MochiTransformer3DModel
from safetensors.torch import load_file, save_file

from foretune.catalog import TRAINABLE
from foretune.catalog.tool_names import single_file, why_no_single_file
from foretune.core.errors import Refused
from foretune.training.export_files import ExportBroken
from foretune.training.for_tools.single_file import prove_single_file, write_single_file
from tests.training.for_tools.trained_models import trained

TinyPipeline = Callable[..., Path]


def deep_mochi(folder: Path, tiny: Path) -> Path:
    """A tiny Mochi with as many blocks as diffusers takes for granted."""
    for path in tiny.iterdir():
        if path.name != "transformer":
            (folder / path.name).symlink_to(path)
    config: dict[str, Any] = dict(MochiTransformer3DModel.load_config(tiny / "transformer"))
    MochiTransformer3DModel.from_config({**config, "num_layers": 48}).save_pretrained(folder / "transformer")
    return folder


READABLE = [("sd1", "1.5"), ("sdxl", "1.0"), ("sd3", "3.5"), ("sd3", "3"), ("wan", "2.1-t2v"), ("wan", "2.1-i2v")]


@pytest.mark.parametrize(("family", "variant"), READABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_diffusers_reads_every_tensor_back(
    family: str, variant: str, dtype: torch.dtype, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    model = trained(tiny_pipeline(family, variant), dtype)
    proof = write_single_file(model, tmp_path / "model.safetensors", dtype, {})
    assert proof.num_equal == proof.num_tensors
    assert proof.holds
    assert proof.num_tensors >= len(model.denoiser.state_dict())


def test_a_model_as_deep_as_published(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    model = trained(deep_mochi(tmp_path, tiny_pipeline("mochi")))
    assert write_single_file(model, tmp_path / "model.safetensors", torch.float32, {}).holds


@pytest.mark.parametrize("family", [family for family in TRAINABLE if single_file(family) is None])
def test_a_family_without_single_files_is_refused(family: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    with pytest.raises(Refused, match=rf"no single-file export .*single files of {family} models are not supported"):
        write_single_file(trained(tiny_pipeline(family)), tmp_path / "model.safetensors", torch.float32, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("family", "variant", "named"),
    [
        ("flux", "dev", "only with num_attention_heads 24 and attention_head_dim 128"),
        ("hunyuan_video", "1.0", "only with num_attention_heads 24 and attention_head_dim 128"),
        ("mochi", "1", "only with num_layers 48"),
        ("sd1", "2.1", "not OpenAI's CLIP"),
    ],
)
def test_a_model_that_diffusers_would_not_read_is_refused(
    family: str, variant: str, named: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    with pytest.raises(Refused, match=named):
        write_single_file(trained(tiny_pipeline(family, variant)), tmp_path / "model.safetensors", torch.float32, {})


def test_the_published_sizes_are_not_refused() -> None:
    assert why_no_single_file("flux", {"num_attention_heads": 24, "attention_head_dim": 128}) is None
    assert why_no_single_file("mochi", {"num_layers": 48}) is None


@pytest.mark.parametrize(
    ("family", "tensor"),
    [
        ("sd3", "joint_blocks.0.x_block.attn.qkv.weight"),
        ("sdxl", "conditioner.embedders.1.model.text_projection"),
        ("sd1", "first_stage_model.decoder.mid.attn_1.q.weight"),
        ("sd1", "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q.weight"),
    ],
)
def test_control_a_file_with_another_tensor_is_caught(
    family: str, tensor: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    model = trained(tiny_pipeline(family))
    path = tmp_path / "model.safetensors"
    write_single_file(model, path, torch.float32, {})
    file = load_file(path)
    file[tensor][0] += 1
    save_file(file, path)
    assert not prove_single_file(model, path, torch.float32).holds


def test_control_a_file_that_lacks_a_tensor_is_caught(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    model = trained(tiny_pipeline("sd3"))
    path = tmp_path / "model.safetensors"
    write_single_file(model, path, torch.float32, {})
    file = load_file(path)
    del file["joint_blocks.1.x_block.mlp.fc1.weight"]
    save_file(file, path)
    with pytest.raises(ExportBroken, match=r"diffusers could not read the file"):
        prove_single_file(model, path, torch.float32)
