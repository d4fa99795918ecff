"""Adapters for ComfyUI and kohya's trainers: loaded by their rules, they give the weights that peft merges."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxTransformer2DModel
from diffusers.loaders.lora_conversion_utils import _convert_kohya_flux_lora_to_diffusers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from foretune.catalog import TRAINABLE
from foretune.catalog.tool_names import adapter_form, why_no_adapter
from foretune.choices.method import METHODS as CHOICES
from foretune.choices.method import Lora
from foretune.core.errors import Refused
from foretune.models.locating import open_family
from foretune.step.methods import METHODS
from foretune.step.methods.adapter import AppliedAdapter
from foretune.training.for_tools.adapter_file import adapter_tensors, prove_adapter_file, write_adapter_file
from foretune.training.for_tools.updates import layers_with_adapter
from foretune.training.sampling import SampleRequest, sample
from tests.models.made_inputs import small_size
from tests.step.methods.kinds import KINDS, disturb, merge
from tests.training.for_tools.other_programs import PROGRAMS, Weights

TinyPipeline = Callable[..., Path]

FORMATS = ("comfyui", "kohya")
CASES = [(family, kind, fmt) for family in TRAINABLE for kind in KINDS for fmt in FORMATS]
LOADED = [case for case in CASES if why_no_adapter(case[0], case[1].split()[0], case[2]) is None]
REFUSED = [case for case in CASES if case not in LOADED]

# Layers of every sort: some of those that are stacked, swapped ones, convolutions, layers outside of blocks.
ODD_LAYERS = {
    ("flux", "comfyui"): ["to_q", "proj_mlp", "to_add_out", "norm.linear", "norm_out.linear", "x_embedder"],
    ("flux", "kohya"): ["to_k", "proj_mlp", "add_v_proj", "norm.linear", "ff.net.2", "text_embedder.linear_1"],
    ("sd3", "comfyui"): ["to_k", "norm1_context.linear", "norm_out.linear", "pos_embed.proj", "context_embedder"],
    ("sd3", "kohya"): ["to_k", "norm1_context.linear", "norm_out.linear", "pos_embed.proj", "text_embedder.linear_1"],
    ("sd1", "comfyui"): ["conv1", "conv_shortcut", "proj_in", "time_emb_proj", "downsamplers.0.conv", "conv_in"],
    ("sd1", "kohya"): ["conv2", "conv_shortcut", "proj_out", "time_emb_proj", "upsamplers.0.conv"],
    ("sdxl", "comfyui"): ["conv2", "proj_out", "time_emb_proj", "upsamplers.0.conv", "add_embedding.linear_1"],
    ("sdxl", "kohya"): ["conv1", "proj_in", "conv_shortcut", "downsamplers.0.conv", "upsamplers.0.conv"],
    ("wan", "comfyui"): ["to_k", "ffn.net.0.proj", "proj_out", "time_proj", "text_embedder.linear_1"],
    ("wan", "kohya"): ["to_out.0", "ffn.net.0.proj", "ffn.net.2"],
    ("hunyuan_video", "comfyui"): ["to_v", "proj_mlp", "norm_out.linear", "timestep_embedder.linear_1", "ff.net.2"],
    ("hunyuan_video", "kohya"): ["add_q_proj", "proj_mlp", "norm.linear", "ff_context.net.0.proj"],
    ("mochi", "comfyui"): ["to_q", "add_k_proj", "ff.net.0.proj", "ff_context.net.0.proj", "norm_out.linear"],
    ("ltx_video", "comfyui"): ["to_v", "ff.net.2", "proj_in", "time_embed.linear", "caption_projection.linear_1"],
    ("pixart", "comfyui"): ["to_v", "ff.net.0.proj", "adaln_single.linear", "caption_projection.linear_1"],
    ("ovis_image", "comfyui"): ["add_q_proj", "to_add_out"],
    ("chroma", "comfyui"): ["add_q_proj", "to_add_out", "proj_mlp", "ff.net.2"],
    ("qwen_image", "comfyui"): ["add_k_proj", "img_mod.1", "img_mlp.net.2"],
}
ODD = [(family, kind, fmt) for family, kind, fmt in LOADED if (family, fmt) in ODD_LAYERS and kind != "rslora"]
# Of the layers that are adapted by default, musubi-tuner does not look at those in the refiner of the text.
OUTSIDE_REFINER = {"targets": ["add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"]}
DEFAULTS = {("hunyuan_video", "kohya"): OUTSIDE_REFINER}


def trained(folder: Path, method: dict[str, Any], dtype: torch.dtype = torch.float32) -> AppliedAdapter:
    """An adapter whose weights are not zero any more, on a tiny model."""
    family = open_family(folder)
    choice: Any = CHOICES[method["kind"]].model_validate(method)
    made = METHODS[choice.kind](choice, family, family.load_denoiser(folder, dtype))
    made.attach(0, dtype)
    assert isinstance(made, AppliedAdapter)
    disturb(made)
    made.denoiser.eval()
    return made


def weights_of(method: AppliedAdapter) -> tuple[Weights, Weights]:
    """Weights of the base, and with the adapter merged by peft, by diffusers' names."""
    state = {name: t.detach() for name, t in method.denoiser.state_dict().items() if "default" not in name.split(".")}
    base = {name.replace(".base_layer.", "."): tensor for name, tensor in state.items()}
    merged = copy.deepcopy(method)
    merge(merged)
    return base, {name: tensor.detach() for name, tensor in merged.denoiser.state_dict().items()}


def assert_loads(method: AppliedAdapter, fmt: str, path: Path) -> None:
    """The other program's weights after loading are those of peft; those without an adapter are as they were."""
    family = method.family.name
    base, merged = weights_of(method)
    program = PROGRAMS[fmt](family, method.denoiser, base)
    now = program.load(load_file(path))
    wanted = PROGRAMS[fmt](family, method.denoiser, merged).weights
    assert set(now) == set(wanted)
    largest = max(float((wanted[name] - program.weights[name]).abs().max()) for name in wanted)
    assert largest > 1e-4, "an adapter that changes nothing proves nothing"
    wrong = {name for name in wanted if (now[name] - wanted[name]).abs().max() > 1e-5 * max(1.0, largest)}
    assert wrong == set()


@pytest.mark.takes_turns
@pytest.mark.parametrize(("family", "kind", "fmt"), LOADED)
def test_the_other_program_gets_the_trained_weights(
    family: str, kind: str, fmt: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    method = trained(tiny_pipeline(family), {**KINDS[kind], **DEFAULTS.get((family, fmt), {})})
    proof = write_adapter_file(method, fmt, tmp_path / "a.safetensors", {})
    assert proof.holds
    assert proof.num_layers == len(layers_with_adapter(method.denoiser))
    assert_loads(method, fmt, tmp_path / "a.safetensors")


@pytest.mark.takes_turns
@pytest.mark.parametrize(("family", "kind", "fmt"), ODD)
def test_layers_of_every_sort(family: str, kind: str, fmt: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    method = trained(tiny_pipeline(family), {**KINDS[kind], "targets": ODD_LAYERS[family, fmt]})
    assert write_adapter_file(method, fmt, tmp_path / "a.safetensors", {}).holds
    assert_loads(method, fmt, tmp_path / "a.safetensors")


@pytest.mark.takes_turns
@pytest.mark.parametrize(("family", "kind"), sorted({case[:2] for case in REFUSED}))
def test_what_a_program_does_not_load_is_refused(
    family: str, kind: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    method = trained(tiny_pipeline(family), KINDS[kind])
    for fmt in FORMATS:
        if (family, kind, fmt) in REFUSED:
            with pytest.raises(Refused, match=rf"no {fmt} export .*{family}.* --merge"):
                write_adapter_file(method, fmt, tmp_path / "a.safetensors", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("family", "fmt", "targets", "named"),
    [
        (
            "flux",
            "kohya",
            ["to_q", "norm_out.linear"],
            r"sd-scripts gives no adapters to 1 of the 7 .* norm_out\.linear",
        ),
        ("sdxl", "kohya", ["add_embedding.linear_1"], r"1 of the 1 .* add_embedding\.linear_1"),
        ("hunyuan_video", "kohya", ["to_q"], r"musubi-tuner gives no adapters .* context_embedder\.token_refiner"),
        ("ovis_image", "comfyui", ["to_q", "proj_mlp"], r"ComfyUI gives no adapters .*proj_mlp"),
    ],
)
def test_layers_that_a_program_does_not_look_at_are_named(
    family: str, fmt: str, targets: list[str], named: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    method = trained(tiny_pipeline(family), {**KINDS["lora"], "targets": targets})
    with pytest.raises(Refused, match=named):
        write_adapter_file(method, fmt, tmp_path / "a.safetensors", {})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("family", "kind"), [("flux", "rslora"), ("hunyuan_video", "dora"), ("wan", "lokr whole")])
def test_files_in_16_bits(
    family: str, kind: str, dtype: torch.dtype, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    """Strength and row scales stay in fp32: rounded, they would change every weight of a layer."""
    method = trained(tiny_pipeline(family), KINDS[kind], dtype)
    proof = write_adapter_file(method, "comfyui", tmp_path / "a.safetensors", {})
    assert proof.holds
    file = load_file(tmp_path / "a.safetensors")
    kept = {name for name, tensor in file.items() if tensor.dtype == torch.float32}
    assert kept == {name for name in file if name.endswith((".alpha", ".dora_scale"))}
    if kind != "lokr whole":
        assert proof.max_difference < 1e-5


def drop_alpha(file: dict[str, Tensor]) -> None:
    for name in [name for name in file if name.endswith(".alpha")]:
        file[name] = torch.ones(())


def swap_two(file: dict[str, Tensor]) -> None:
    ups = [name for name in file if "lora_up" in name or "lora_B" in name]
    one, other = [name for name in ups if file[name].shape == file[ups[0]].shape][:2]
    file[one], file[other] = file[other].clone(), file[one].clone()


def lose_one(file: dict[str, Tensor]) -> None:
    layer = next(iter(file)).split(".lora_")[0].removesuffix(".alpha")
    for name in [name for name in file if name.startswith(f"{layer}.")]:
        del file[name]


def add_one(file: dict[str, Tensor]) -> None:
    for name in [name for name in file if name.split(".")[0] in next(iter(file))]:
        file[f"unknown_{name}"] = file[name].clone()


def fill_zeros(file: dict[str, Tensor]) -> None:
    """Rows of a layer that was not trained, in a stacked one."""
    name = next(name for name in file if "linear1.lora_up" in name.replace("_linear1", ".linear1"))
    file[name][-1, 0] = 0.1


@pytest.mark.parametrize(
    ("fmt", "spoil"),
    [(fmt, spoil) for fmt in FORMATS for spoil in (drop_alpha, swap_two, lose_one, add_one)] + [("kohya", fill_zeros)],
)
def test_control_a_spoiled_file_is_caught(
    fmt: str, spoil: Callable[[dict[str, Tensor]], None], tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    method = trained(tiny_pipeline("flux"), KINDS["lora"])
    path = tmp_path / "a.safetensors"
    assert write_adapter_file(method, fmt, path, {}).holds
    file = load_file(path)
    spoil(file)
    save_file(file, path)
    assert not prove_adapter_file(method, fmt, path).holds


def test_metadata_of_kohyas_trainers(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    def metadata(family: str, kind: str, variant: str | None = None) -> dict[str, str]:
        method = trained(tiny_pipeline(family, variant), KINDS[kind])
        write_adapter_file(method, "kohya", tmp_path / "a.safetensors", {"modelspec.title": "mine"})
        with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
            return dict(file.metadata())

    assert metadata("sdxl", "lora") == {
        "format": "pt",
        "modelspec.architecture": "stable-diffusion-xl-v1-base/lora",
        "modelspec.title": "mine",
        "ss_base_model_version": "sdxl_base_v1-0",
        "ss_network_alpha": "10",
        "ss_network_dim": "4",
        "ss_network_module": "networks.lora",
    }
    assert metadata("flux", "rslora")["ss_network_alpha"] == "20"
    assert metadata("flux", "lora", "schnell")["modelspec.architecture"] == "flux-1-schnell/lora"
    lokr = metadata("wan", "lokr whole")
    assert (lokr["ss_network_module"], lokr["ss_network_args"]) == ("networks.lokr", '{"factor": 4}')


@pytest.mark.parametrize(
    ("family", "fmt"),
    [("flux", "comfyui"), *((family, fmt) for family in ("sd1", "sdxl", "wan") for fmt in FORMATS)],
)
def test_diffusers_reads_the_file_too(family: str, fmt: str, tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    """Its converters are a third program that knows these names: images are those of the trained model."""
    folder = tiny_pipeline(family)
    # Its converter of musubi-tuner's files expects every layer of a block.
    whole = {"targets": ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]} if family == "wan" else {}
    method = trained(folder, {**KINDS["lora"], **whole})
    write_adapter_file(method, fmt, tmp_path / "a.safetensors", {})
    family_: Any = method.family
    request = SampleRequest(
        prompts=("a small red circle on blue",),
        seed=0,
        num_inference_steps=2,
        size=small_size(family_),
        num_text_tokens=16,
    )
    mine = family_.load_pipeline(folder, torch.float32, **{family_.denoiser_part: method.denoiser})
    theirs = family_.load_pipeline(folder, torch.float32)
    before = sample(family_, theirs, request)[0]
    theirs.load_lora_weights(tmp_path, weight_name="a.safetensors", local_files_only=True)
    wanted = sample(family_, mine, request)[0]
    assert np.abs(before - wanted).max() > 1e-3
    assert np.abs(sample(family_, theirs, request)[0] - wanted).max() < 1e-5


def test_diffusers_reads_kohyas_flux_of_published_width(tiny_pipeline: TinyPipeline) -> None:
    """Its converter takes 3072 for the width, so that no tiny model will do: adapters of a model without weights."""
    family = open_family(tiny_pipeline("flux"))
    with torch.device("meta"):
        denoiser = FluxTransformer2DModel(num_layers=1, num_single_layers=1, guidance_embeds=True)
    wide = type(family)(family.architecture)._with_config(dict(denoiser.config))
    method = METHODS["lora"](Lora(rank=4, alpha=10), wide, denoiser)
    assert isinstance(method, AppliedAdapter)
    method.attach(0, torch.float32)
    layers = layers_with_adapter(denoiser)
    generator = torch.Generator().manual_seed(0)
    for layer in layers.values():
        for matrix in (layer.lora_A["default"], layer.lora_B["default"]):
            matrix.weight = torch.nn.Parameter(torch.randn(matrix.weight.shape, generator=generator))
    form = adapter_form("flux", "kohya")
    assert form is not None
    read = _convert_kohya_flux_lora_to_diffusers(adapter_tensors(method, form))
    for name, layer in layers.items():
        a, b = (read.pop(f"transformer.{name}.lora_{side}.weight") for side in "AB")
        wanted = layer.lora_B["default"].weight @ layer.lora_A["default"].weight * layer.scaling["default"]
        torch.testing.assert_close(b @ a, wanted, rtol=1e-4, atol=1e-3)
    # The converter splits what is stacked: layers without an adapter get one that does nothing.
    left = {name.rsplit(".lora_", 1)[0] for name in read}
    assert all(not read[f"{name}.lora_B.weight"].any() for name in left)
