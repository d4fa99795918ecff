"""Mochi 1 as genmoai/mochi names it; the form as in ComfyUI at acbf08c. kohya's trainers do not know it."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names.forms import FilePart, SingleFile, comfyui_original
from foretune.catalog.tool_names.layout import OriginalLayout, renamed, stacked, swapped

COMFYUI = comfyui_original(is_stacked=True)

_BLOCK = {
    **renamed(
        {
            "norm1.linear": "mod_x",
            "norm1_context.linear": "mod_y",
            "norm1_context.linear_1": "mod_y",
            "attn1.to_out.0": "attn.proj_x",
            "attn1.to_add_out": "attn.proj_y",
            "attn1.norm_q": "attn.q_norm_x",
            "attn1.norm_k": "attn.k_norm_x",
            "attn1.norm_added_q": "attn.q_norm_y",
            "attn1.norm_added_k": "attn.k_norm_y",
            "ff.net.2": "mlp_x.w2",
            "ff_context.net.2": "mlp_y.w2",
        }
    ),
    **stacked("attn.qkv_x", "attn1.to_q", "attn1.to_k", "attn1.to_v"),
    **stacked("attn.qkv_y", "attn1.add_q_proj", "attn1.add_k_proj", "attn1.add_v_proj"),
    **swapped("ff.net.0.proj", "mlp_x.w1"),
    **swapped("ff_context.net.0.proj", "mlp_y.w1"),
}
_LAYERS = {
    **renamed(
        {
            "pos_frequencies": "pos_frequencies",
            "patch_embed.proj": "x_embedder.proj",
            "time_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
            "time_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
            "time_embed.pooler.to_kv": "t5_y_embedder.to_kv",
            "time_embed.pooler.to_q": "t5_y_embedder.to_q",
            "time_embed.pooler.to_out": "t5_y_embedder.to_out",
            "time_embed.caption_proj": "t5_yproj",
            "proj_out": "final_layer.linear",
        }
    ),
    **swapped("norm_out.linear", "final_layer.mod"),
}


def layout(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the original names for a transformer with this configuration."""
    return OriginalLayout(
        {f"transformer_blocks.{i}": (f"blocks.{i}", _BLOCK) for i in range(config["num_layers"])}, _LAYERS
    )


SINGLE_FILE = SingleFile({"transformer": FilePart(layout)}, "diffusion_models", {"num_layers": 48})
