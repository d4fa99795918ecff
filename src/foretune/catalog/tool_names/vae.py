"""Autoencoders of Stable Diffusion as CompVis/stable-diffusion names their layers."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names.layout import Names, OriginalLayout, convolved, renamed

_RESNET = renamed({name: name for name in ("norm1", "conv1", "norm2", "conv2")} | {"conv_shortcut": "nin_shortcut"})
_ATTENTION = {
    **renamed({"group_norm": "norm"}),
    **convolved({"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}),
}


def layout(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the original names for an autoencoder with this configuration; its decoder is counted from the end."""
    per_level, num_levels = int(config["layers_per_block"]), len(config["block_out_channels"])
    stems: dict[str, tuple[str, Names | None]] = {}
    for side in ("encoder", "decoder"):
        stems[f"{side}.mid_block.resnets.0"] = (f"{side}.mid.block_1", _RESNET)
        stems[f"{side}.mid_block.attentions.0"] = (f"{side}.mid.attn_1", _ATTENTION)
        stems[f"{side}.mid_block.resnets.1"] = (f"{side}.mid.block_2", _RESNET)
    for level in range(num_levels):
        back = num_levels - 1 - level
        for layer in range(per_level + 1):
            stems[f"encoder.down_blocks.{level}.resnets.{layer}"] = (f"encoder.down.{level}.block.{layer}", _RESNET)
            stems[f"decoder.up_blocks.{level}.resnets.{layer}"] = (f"decoder.up.{back}.block.{layer}", _RESNET)
        stems[f"encoder.down_blocks.{level}.downsamplers.0"] = (f"encoder.down.{level}.downsample", None)
        stems[f"decoder.up_blocks.{level}.upsamplers.0"] = (f"decoder.up.{back}.upsample", None)
    ends = {f"{side}.{name}": f"{side}.{name}" for side in ("encoder", "decoder") for name in ("conv_in", "conv_out")}
    norms = {f"{side}.conv_norm_out": f"{side}.norm_out" for side in ("encoder", "decoder")}
    return OriginalLayout(
        stems, renamed({**ends, **norms, "quant_conv": "quant_conv", "post_quant_conv": "post_quant_conv"})
    )
