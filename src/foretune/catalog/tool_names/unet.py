"""UNets of Stable Diffusion as CompVis/stable-diffusion and Stability-AI/generative-models name their layers."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names.layout import Names, OriginalLayout, renamed

_RESNET = renamed(
    {
        "norm1": "in_layers.0",
        "conv1": "in_layers.2",
        "time_emb_proj": "emb_layers.1",
        "norm2": "out_layers.0",
        "conv2": "out_layers.3",
        "conv_shortcut": "skip_connection",
    }
)
_LAYERS = renamed(
    {
        "conv_in": "input_blocks.0.0",
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "add_embedding.linear_1": "label_emb.0.0",
        "add_embedding.linear_2": "label_emb.0.2",
        "conv_norm_out": "out.0",
        "conv_out": "out.2",
    }
)


def layout(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the original names for a UNet with this configuration: its blocks are counted through."""
    stems: dict[str, tuple[str, Names | None]] = {
        "mid_block.resnets.0": ("middle_block.0", _RESNET),
        "mid_block.attentions.0": ("middle_block.1", None),
        "mid_block.resnets.1": ("middle_block.2", _RESNET),
    }
    per_level = int(config["layers_per_block"])
    number = 1
    for level, _ in enumerate(config["down_block_types"]):
        for layer in range(per_level):
            stems[f"down_blocks.{level}.resnets.{layer}"] = (f"input_blocks.{number}.0", _RESNET)
            stems[f"down_blocks.{level}.attentions.{layer}"] = (f"input_blocks.{number}.1", None)
            number += 1
        stems[f"down_blocks.{level}.downsamplers.0"] = (f"input_blocks.{number}.0", renamed({"conv": "op"}))
        number += 1
    number = 0
    for level, kind in enumerate(config["up_block_types"]):
        for layer in range(per_level + 1):
            stems[f"up_blocks.{level}.resnets.{layer}"] = (f"output_blocks.{number}.0", _RESNET)
            stems[f"up_blocks.{level}.attentions.{layer}"] = (f"output_blocks.{number}.1", None)
            number += 1
        after = 2 if "Attn" in kind else 1
        stems[f"up_blocks.{level}.upsamplers.0"] = (f"output_blocks.{number - 1}.{after}", None)
    return OriginalLayout(stems, _LAYERS)
