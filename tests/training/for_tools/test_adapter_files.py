"""Adapters for ComfyUI and kohya's trainers: loaded by their rules, they give the weights that peft merges."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from foretune.catalog import TRAINABLE
from foretune.catalog.tool_names import adapter_form, why_no_adapter
from foretune.core.errors import Refused
from foretune.step.methods.adapter import AppliedAdapter
from foretune.training.for_tools import updates
from foretune.training.for_tools.adapter_file import prove_adapter_file, write_adapter_file
from tests.step.methods.kinds import KINDS, adapter_of, disturb
from tests.step.small_steps import small_step
from tests.training.for_tools.other_programs import PROGRAMS, Weights

TinyPipeline = Callable[..., Path]

FORMATS = ("comfyui", "kohya")
CASES = [(family, kind, fmt) for family in TRAINABLE for kind in KINDS for fmt in FORMATS]
LOADED = [case for case in CASES if why_no_adapter(case[0], case[1].split()[0], case[2]) is None]
REFUSED = [case for case in CASES if case not in LOADED]
# Layers that musubi-tuner looks at: the default ones are also in the refiner of the text.
IN_BLOCKS = {"targets": ["add_q_proj", "add_v_proj", "to_add_out", "proj_mlp", "norm.linear"]}
# Layers of every sort: stacked in part, swapped, outside of blocks, convolutions.
ODD_LAYERS = {
    "flux": ["to_q", "proj_mlp", "to_add_out", "norm.linear", "norm_out.linear", "x_embedder", "ff.net.2"],
    "sd3": ["to_k", "add_v_proj", "norm1_context.linear", "norm_out.linear", "pos_embed.proj", "proj_out"],
    "sd1": ["conv1", "conv_shortcut", "proj_in", "time_emb_proj", "downsamplers.0.conv", "upsamplers.0.conv", "conv_in"],
    "sdxl": ["conv2", "proj_out", "time_emb_proj", "op", "upsamplers.0.conv", "add_embedding.linear_1"],
    "wan": ["to_k", "ffn.net.0.proj", "proj_out", "time_proj", "text_embedder.linear_1"],
    "hunyuan_video": ["to_v", "proj_mlp", "norm_out.linear", "timestep_embedder.linear_1", "proj_in", "ff.net.2"],
    "mochi": ["to_q", "add_k_proj", "ff.net.0.proj", "ff_context.net.0.proj", "norm_out.linear", "caption_proj"],
    "pixart": ["to_v", "ff.net.0.proj", "adaln_single.linear", "caption_projection.linear_1", "pos_embed.proj"],
}
NOT_IN_KOHYA = {"flux": {"norm_out.linear"}, "sd1": {"conv_in"}, "sdxl": {"add_embedding.linear_1"}}
NOT_IN_KOHYA["wan"] = {"proj_out", "time_proj", "text_embedder.linear_1"}


def trained(folder: Path, method: dict[str, Any]) -> AppliedAdapter:
    made = adapter_of(small_step(folder, method))
    disturb(made)
    return made


def weights_of(method: AppliedAdapter) -> tuple[Weights, Weights]:
    """Weights of the base, and with the adapter merged by peft, by diffusers' names."""
    base = adapterless(method)
    merged = copy.deepcopy(method)
    merged.merge()
    return base, {name: tensor.detach() for name, tensor in merged.denoiser.state_dict().items()}


def adapterless(method: AppliedAdapter) -> Weights:
    state = {name: tensor.detach() for name, tensor in method.denoiser.state_dict().items() if ".default" not in name}
    return {name.replace(".base_layer.", "."): tensor for name, tensor in state.items()}


def assert_loads(method: AppliedAdapter, fmt: str, path: Path) -> int:
    """The other program's weights after loading are those of peft; returns how many changed."""
    family = method.family.name
    base, merged = weights_of(method)
    program = PROGRAMS[fmt](family, method.denoiser, base)
    now = program.load(load_file(path))
    wanted = PROGRAMS[fmt](family, method.denoiser, merged).weights
    assert set(now) == set(wanted)
    for name, tensor in wanted.items():
        torch.testing.assert_close(now[name].float(), tensor.float(), rtol=1e-5, atol=1e-6, msg=lambda m, n=name: n + m)
    return sum(not torch.equal(wanted[name], program.weights[name]) for name in wanted)


def method_for(family: str, kind: str, fmt: str) -> dict[str, Any]:
    return {**KINDS[kind], **(IN_BLOCKS if (family, fmt) == ("hunyuan_video", "kohya") else {})}


def without_missing(targets: list[str], folder: Path, method: dict[str, Any]) -> dict[str, Any]:
    return {**method, "targets": targets}


@pytest.mark.parametrize(("family", "kind", "fmt"), LOADED)
def test_the_other_program_gets_the_trained_weights(
    family: str, kind: str, fmt: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    asked = method_for(family, kind, fmt)
    if "targets" in asked:
        asked["targets"] = ["add_q_proj", "add_v_proj", "to_add_out", "proj_mlp", "norm.linear"]
    method = trained(tiny_pipeline(family), asked)
    proof = write_adapter_file(method, fmt, tmp_path / "a.safetensors", {})
    assert proof.holds
    assert proof.num_layers == len(updates.layers_with_adapter(method.denoiser))
    assert assert_loads(method, fmt, tmp_path / "a.safetensors") > 0
