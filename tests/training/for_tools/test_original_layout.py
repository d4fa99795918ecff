"""Original layouts, undone by diffusers' own converters: every tensor comes back under its name, bit for bit."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel, HunyuanVideoTransformer3DModel, MochiTransformer3DModel
from diffusers.loaders import single_file_utils as converters
from torch import Tensor

from foretune.catalog.tool_names import original_layout
from foretune.catalog.tool_names.layout import OriginalLayout, renamed, stacked
from foretune.core.errors import Refused
from foretune.models.locating import open_family
from foretune.training.for_tools.original import to_original

TinyPipeline = Callable[..., Path]
Converter = Callable[..., dict[str, Tensor]]

CONVERTERS: dict[str, Converter] = {
    "sd3": converters.convert_sd3_transformer_checkpoint_to_diffusers,
    "wan": converters.convert_wan_transformer_to_diffusers,
    "flux": converters.convert_flux_transformer_checkpoint_to_diffusers,
    "hunyuan_video": converters.convert_hunyuan_video_transformer_to_diffusers,
    "ltx_video": converters.convert_ltx_transformer_checkpoint_to_diffusers,
    "mochi": converters.convert_mochi_transformer_checkpoint_to_diffusers,
}


def numbered(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the same rows, each number different, with one column: no converter looks at the columns."""
    numbers: dict[str, Tensor] = {}
    first = 0
    for name, tensor in state.items():
        rows = tensor.shape[0]
        values = torch.arange(first, first + rows, dtype=torch.float64)
        numbers[name] = values if tensor.dim() == 1 else values.reshape(rows, *[1] * (tensor.dim() - 1))
        first += rows
    return numbers


def published_width(family: str) -> Any:
    """A denoiser as wide (FLUX, HunyuanVideo) or deep (Mochi) as diffusers' converter takes for granted, on meta."""
    with torch.device("meta"):
        if family == "flux":
            return FluxTransformer2DModel(num_layers=2, num_single_layers=2, guidance_embeds=True)
        if family == "hunyuan_video":
            return HunyuanVideoTransformer3DModel(num_layers=2, num_single_layers=2, num_refiner_layers=2)
        return MochiTransformer3DModel(num_attention_heads=2, attention_head_dim=8, pooled_projection_dim=8)


def assert_equal(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert sorted(found) == sorted(wanted)
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


@pytest.mark.parametrize("family", ["flux", "hunyuan_video", "mochi"])
def test_diffusers_undoes_the_layout_of_published_sizes(family: str) -> None:
    denoiser = published_width(family)
    layout = original_layout(family, denoiser.config)
    assert layout is not None
    state = numbered(denoiser.state_dict())
    assert_equal(CONVERTERS[family](to_original(state, layout)), state)


@pytest.mark.parametrize(
    ("family", "variant"), [("sd3", "3.5"), ("sd3", "3"), ("wan", "2.1-t2v"), ("wan", "2.1-i2v"), ("ltx_video", "0.9")]
)
def test_diffusers_undoes_the_layout_of_transformers(family: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(family, variant)
    denoiser: Any = open_family(folder).load_denoiser(folder, torch.float32)
    layout = original_layout(family, denoiser.config)
    assert layout is not None
    state = dict(denoiser.state_dict())
    assert_equal(CONVERTERS[family](to_original(state, layout)), state)


@pytest.mark.parametrize(("family", "variant"), [("sd1", "1.5"), ("sd1", "2.1"), ("sdxl", "1.0")])
def test_diffusers_undoes_the_layout_of_unets(family: str, variant: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(family, variant)
    denoiser: Any = open_family(folder).load_denoiser(folder, torch.float32)
    layout = original_layout(family, denoiser.config)
    assert layout is not None
    state = dict(denoiser.state_dict())
    original = {f"model.diffusion_model.{name}": tensor for name, tensor in to_original(state, layout).items()}
    assert_equal(converters.convert_ldm_unet_checkpoint(original, denoiser.config), state)


def test_what_has_no_place_is_refused() -> None:
    layout = OriginalLayout(layers={**renamed({"a": "b"}), **stacked("qkv", "q", "k")})
    one = torch.ones(2)
    assert set(to_original({"a.weight": one}, layout)) == {"b.weight"}
    with pytest.raises(Refused, match=r"no place for other\.weight"):
        to_original({"other.weight": one}, layout)
    with pytest.raises(Refused, match=r"qkv\.weight .* stacked from 2 tensors; 1 exist"):
        to_original({"q.weight": one}, layout)
