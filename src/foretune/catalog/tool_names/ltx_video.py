"""LTX-Video as Lightricks/LTX-Video names it; the form as in ComfyUI at acbf08c. kohya's trainers do not know it."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names.forms import comfyui_original
from foretune.catalog.tool_names.layout import OriginalLayout, renamed

COMFYUI = comfyui_original()

_BLOCK = renamed(
    {
        **{
            f"{attention}.{ours}": f"{attention}.{theirs}"
            for attention in ("attn1", "attn2")
            for ours, theirs in {
                "to_q": "to_q",
                "to_k": "to_k",
                "to_v": "to_v",
                "to_out.0": "to_out.0",
                "norm_q": "q_norm",
                "norm_k": "k_norm",
            }.items()
        },
        "ff.net.0.proj": "ff.net.0.proj",
        "ff.net.2": "ff.net.2",
        "scale_shift_table": "scale_shift_table",
    }
)
_LAYERS = renamed(
    {
        "proj_in": "patchify_proj",
        "time_embed.emb.timestep_embedder.linear_1": "adaln_single.emb.timestep_embedder.linear_1",
        "time_embed.emb.timestep_embedder.linear_2": "adaln_single.emb.timestep_embedder.linear_2",
        "time_embed.linear": "adaln_single.linear",
        "caption_projection.linear_1": "caption_projection.linear_1",
        "caption_projection.linear_2": "caption_projection.linear_2",
        "scale_shift_table": "scale_shift_table",
        "proj_out": "proj_out",
    }
)


def layout(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the original names for a transformer with this configuration."""
    return OriginalLayout(
        {f"transformer_blocks.{i}": (f"transformer_blocks.{i}", _BLOCK) for i in range(config["num_layers"])}, _LAYERS
    )
