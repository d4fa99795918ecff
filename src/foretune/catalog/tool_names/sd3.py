"""Stable Diffusion 3 as Stability-AI/sd3.5 names it; forms as in ComfyUI at acbf08c and sd-scripts at 48d368f."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names.forms import FilePart, SingleFile, comfyui, describing, kohya
from foretune.catalog.tool_names.layout import OriginalLayout, renamed, stacked, swapped

COMFYUI = comfyui()
KOHYA = kohya("sd-scripts", module="networks.lora_sd3")
# Its configuration does not name the variant, which sd-scripts would write as the version.
kohya_metadata = describing(None, "stable-diffusion-3")

_BLOCK = {
    **renamed(
        {
            "norm1.linear": "x_block.adaLN_modulation.1",
            "norm1_context.linear": "context_block.adaLN_modulation.1",
            "attn.to_out.0": "x_block.attn.proj",
            "attn.to_add_out": "context_block.attn.proj",
            "attn.norm_q": "x_block.attn.ln_q",
            "attn.norm_k": "x_block.attn.ln_k",
            "attn.norm_added_q": "context_block.attn.ln_q",
            "attn.norm_added_k": "context_block.attn.ln_k",
            "attn2.to_out.0": "x_block.attn2.proj",
            "attn2.norm_q": "x_block.attn2.ln_q",
            "attn2.norm_k": "x_block.attn2.ln_k",
            "ff.net.0.proj": "x_block.mlp.fc1",
            "ff.net.2": "x_block.mlp.fc2",
            "ff_context.net.0.proj": "context_block.mlp.fc1",
            "ff_context.net.2": "context_block.mlp.fc2",
        }
    ),
    **stacked("x_block.attn.qkv", "attn.to_q", "attn.to_k", "attn.to_v"),
    **stacked("x_block.attn2.qkv", "attn2.to_q", "attn2.to_k", "attn2.to_v"),
    **stacked("context_block.attn.qkv", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
_LAYERS = {
    **renamed(
        {
            "pos_embed.pos_embed": "pos_embed",
            "pos_embed.proj": "x_embedder.proj",
            "context_embedder": "context_embedder",
            "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
            "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
            "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
            "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
            "proj_out": "final_layer.linear",
        }
    ),
    **swapped("norm_out.linear", "final_layer.adaLN_modulation.1"),
}


def layout(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the original names for a transformer with this configuration."""
    last = config["num_layers"] - 1
    # The text ends in the last block, so that its modulation there is that of an output layer.
    ending = swapped(
        f"transformer_blocks.{last}.norm1_context.linear", f"joint_blocks.{last}.context_block.adaLN_modulation.1"
    )
    return OriginalLayout(
        {f"transformer_blocks.{i}": (f"joint_blocks.{i}", _BLOCK) for i in range(last + 1)}, {**_LAYERS, **ending}
    )


SINGLE_FILE = SingleFile({"transformer": FilePart(layout)}, "diffusion_models")
