"""ComfyUI and kohya's trainers as far as adapters go: which names they find, and what they do to a weight.

Written from their sources (ComfyUI at acbf08c, sd-scripts at 48d368f, musubi-tuner at 30c658c), not with the product's
tables. Base weights in original names come from `to_original`, which diffusers' converters undo bit for bit in
`test_original_layout.py`; names of UNets come from diffusers' converter itself.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint
from torch import Tensor

from foretune.catalog.tool_names import original_layout
from foretune.training.for_tools.original import to_original

Weights = dict[str, Tensor]

# `model_lora_keys_unet` with `flux_to_diffusers`, `mmdit_to_diffusers` and `pixart_to_diffusers`: layers with
# diffusers' names that ComfyUI maps to (slices of) its own.
_ATTENTION = r"attn2?\.(to_[qkv]|add_[qkv]_proj|to_out\.0|to_add_out)"
_DOUBLE = rf"transformer_blocks\.\d+\.({_ATTENTION}|norm1(_context)?\.linear|ff(_context)?\.net\.(0\.proj|2))"
_SINGLE = r"single_transformer_blocks\.\d+\.(attn\.to_[qkv]|proj_mlp|proj_out|norm\.linear)"
_TIME = r"time_text_embed\.(timestep|text|guidance)_embedder\.linear_[12]"
COMFYUI_KNOWS = {
    "flux": rf"{_DOUBLE}|{_SINGLE}|{_TIME}|x_embedder|context_embedder|proj_out|norm_out\.linear",
    # Its blocks differ from FLUX's in the feed-forwards, for which the same map names layers that do not exist.
    "ovis_image": rf"transformer_blocks\.\d+\.{_ATTENTION}|single_transformer_blocks\.\d+\.attn\.to_[qkv]",
    # A FLUX without modulation in its blocks.
    "chroma": rf"transformer_blocks\.\d+\.({_ATTENTION}|ff(_context)?\.net\.(0\.proj|2))"
    r"|single_transformer_blocks\.\d+\.(attn\.to_[qkv]|proj_mlp|proj_out)",
    # `model_lora_keys_unet` takes its own names, which are diffusers'.
    "qwen_image": r"transformer_blocks\.\d+\..*",
    # `z_image_to_diffusers`.
    "z_image": r"(layers|noise_refiner|context_refiner)\.\d+\.attention\.(to_[qkv]|to_out\.0)",
    "sd3": rf"{_DOUBLE}|{_TIME}|context_embedder|proj_out|pos_embed\.proj|norm_out\.linear",
    "pixart": r"transformer_blocks\.\d+\.(attn[12]\.(to_[qkv]|to_out\.0)|ff\.net\.(0\.proj|2))|proj_out|pos_embed\.proj"
    r"|caption_projection\.linear_[12]|adaln_single\.(linear|emb\.\w+\.linear_[12])",
}
# Classes of blocks whose layers the trainers look at, by their names in the original model.
KOHYA_LOOKS_AT = {
    "flux": r"(double|single)_blocks\.|(img|time|vector|guidance|txt)_in(\.|$)",
    "sd3": r"joint_blocks\.|context_embedder|t_embedder|x_embedder|y_embedder|final_layer\.(linear|adaLN)",
    "sdxl": r"(input_blocks\.[1-9]\d*|middle_block|output_blocks)\.",
    "wan": r"blocks\.",
    "hunyuan_video": r"(double|single)_blocks\.",
}
# What ComfyUI's `process_unet_state_dict` does to names of HunyuanVideo when it loads a model.
HUNYUAN_IN_COMFYUI = (
    (r"^txt_in\.t_embedder\.mlp\.0\.", "txt_in.t_embedder.in_layer."),
    (r"^txt_in\.t_embedder\.mlp\.2\.", "txt_in.t_embedder.out_layer."),
    (r"^txt_in\.c_embedder\.linear_1\.", "txt_in.c_embedder.in_layer."),
    (r"^txt_in\.c_embedder\.linear_2\.", "txt_in.c_embedder.out_layer."),
    (r"^(time|guidance)_in\.mlp\.0\.", r"\1_in.in_layer."),
    (r"^(time|guidance)_in\.mlp\.2\.", r"\1_in.out_layer."),
    (r"_mod\.linear\.", "_mod.lin."),
    (r"\.modulation\.linear\.", ".modulation.lin."),
    (r"_attn_(qkv|proj)\.", r"_attn.\1."),
    (r"mlp\.fc1\.", "mlp.0."),
    (r"mlp\.fc2\.", "mlp.2."),
)


@dataclass
class OtherProgram:
    """A model in another program, with the names by which it finds layers for adapters."""

    weights: Weights
    """In its own names and order of rows."""
    keys: dict[str, str]
    """Names of layers in adapters' files, with the weight that each changes."""
    swaps_matrices: frozenset[str] = frozenset()
    """Names in files for which it swaps the halves of what is added, but not DoRA's scales."""
    kinds: frozenset[str] = frozenset({"lora", "dora", "loha", "lokr"})

    def load(self, file: Mapping[str, Tensor]) -> Weights:
        """Returns the weights after loading; a tensor that is not used is an error here, and a warning there."""
        unused = set(file)
        now = dict(self.weights)
        for name, key in self.keys.items():
            own = {k[len(name) + 1 :]: v for k, v in file.items() if k.startswith(f"{name}.")}
            own = {k: v for k, v in own.items() if k in _USED_BY_ANY}
            if own:
                unused -= {f"{name}.{k}" for k in own}
                now[key] = self._changed(own, self.weights[key], is_swapped=name in self.swaps_matrices)
        assert not unused, f"not loaded: {sorted(unused)[:3]}"
        return now

    def _changed(self, own: Mapping[str, Tensor], weight: Tensor, *, is_swapped: bool) -> Tensor:
        values = {name: tensor.double() for name, tensor in own.items()}
        before = weight.double()
        kind, rank, product = _product(values)
        assert kind in self.kinds
        factor = values["alpha"].item() / rank if rank is not None and "alpha" in values else 1.0
        added = (product * factor).reshape(before.shape)
        if is_swapped:
            added = torch.cat(list(added.chunk(2))[::-1])
        scale = values.get("dora_scale")
        if scale is None:
            return before + added
        assert "dora" in self.kinds
        assert scale.shape[0] == before.shape[0]
        norms: Tensor = torch.linalg.vector_norm(before.flatten(1), dim=1)
        rows = norms.reshape(-1, *[1] * (before.dim() - 1))
        return (before + added) * scale / (rows + torch.finfo(torch.float32).eps)


_USED_BY_ANY = {
    *("lora_up.weight", "lora_down.weight", "lora_A.weight", "lora_B.weight", "alpha", "dora_scale"),
    *("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    *("lokr_w1", "lokr_w2", "lokr_w2_a", "lokr_w2_b"),
}


def _product(values: Mapping[str, Tensor]) -> tuple[str, int | None, Tensor]:
    up = values.get("lora_up.weight", values.get("lora_B.weight"))
    down = values.get("lora_down.weight", values.get("lora_A.weight"))
    if up is not None and down is not None:
        return "lora", down.shape[0], torch.einsum("or,ri->oi", up.flatten(1), down.flatten(1))
    if "hada_w1_a" in values:
        pairs = [values[f"hada_w{i}_a"].mm(values[f"hada_w{i}_b"]) for i in (1, 2)]
        return "loha", values["hada_w1_b"].shape[0], pairs[0].mul(pairs[1])
    small = values["lokr_w1"]
    if "lokr_w2" in values:
        large, rank = values["lokr_w2"], None
    else:
        large, rank = values["lokr_w2_a"].mm(values["lokr_w2_b"]), values["lokr_w2_b"].shape[0]
    return "lokr", rank, torch.kron(small[(...,) + (None,) * (large.dim() - 2)], large)


def _original(family: str, denoiser: Any, state: Weights) -> Weights:
    layout = original_layout(family, denoiser.config)
    assert layout is not None
    return to_original(state, layout)


def _layers(weights: Weights) -> list[str]:
    return [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]


def _unet_names(denoiser: Any, original: Weights) -> dict[str, str]:
    """Names of diffusers with those of the original, as diffusers' converter has them."""
    prefixed = {f"model.diffusion_model.{name}": torch.tensor(i) for i, name in enumerate(original)}
    names = list(original)
    return {new: names[int(i)] for new, i in convert_ldm_unet_checkpoint(prefixed, denoiser.config).items()}


def in_comfyui(family: str, denoiser: Any, state: Weights) -> OtherProgram:
    """The model as ComfyUI holds it."""
    if family in COMFYUI_KNOWS:
        known = {f"transformer.{name}": f"{name}.weight" for name in _layers(state)}
        known = {name: key for name, key in known.items() if re.fullmatch(COMFYUI_KNOWS[family], name[12:])}
        swapped = {"transformer.norm_out.linear"}
        if family == "sd3":
            swapped.add(f"transformer.transformer_blocks.{denoiser.config.num_layers - 1}.norm1_context.linear")
        # Slices of its stacked layers are diffusers' layers, so that weights are compared by diffusers' names. Where it
        # swaps rows, the rows of its own weight are swapped against diffusers'.
        rows = {key: torch.cat(list(state[key].chunk(2))[::-1]) for name, key in known.items() if name in swapped}
        return OtherProgram({**state, **rows}, known, frozenset(swapped & set(known)))
    original = _original(family, denoiser, state)
    if family in ("sd1", "sdxl"):
        names = _unet_names(denoiser, original)
        keys = {
            f"lora_unet_{name[:-7].replace('.', '_')}": key for name, key in names.items() if name.endswith(".weight")
        }
        return OtherProgram(original, keys)
    if family == "hunyuan_video":
        original = {_renamed(name): tensor for name, tensor in original.items()}
    return OtherProgram(original, {f"diffusion_model.{name}": f"{name}.weight" for name in _layers(original)})


def _renamed(name: str) -> str:
    for pattern, new in HUNYUAN_IN_COMFYUI:
        name = re.sub(pattern, new, name)
    return name


def in_kohya(family: str, denoiser: Any, state: Weights) -> OtherProgram:
    """The model as sd-scripts or musubi-tuner hold it."""
    if family == "sd1":
        layers = [name for name in _layers(state) if re.search(r"\.(attentions|resnets|(down|up)samplers)\.", name)]
        weights = state
    else:
        weights = _original(family, denoiser, state)
        layers = [name for name in _layers(weights) if re.match(KOHYA_LOOKS_AT[family], name)]
    kinds = {"wan": {"lora", "loha", "lokr"}, "hunyuan_video": {"lora", "loha", "lokr"}}.get(family, {"lora"})
    keys = {f"lora_unet_{name.replace('.', '_')}": f"{name}.weight" for name in layers}
    return OtherProgram(weights, keys, kinds=frozenset(kinds))


PROGRAMS: dict[str, Callable[[str, Any, Weights], OtherProgram]] = {"comfyui": in_comfyui, "kohya": in_kohya}
