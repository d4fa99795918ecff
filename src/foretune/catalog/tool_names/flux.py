"""FLUX.1 as black-forest-labs/flux names it; forms as in ComfyUI at acbf08c and kohya-ss/sd-scripts at 48d368f."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names.forms import FilePart, SingleFile, comfyui, described, kohya
from foretune.catalog.tool_names.layout import OriginalLayout, renamed, stacked, swapped

COMFYUI = comfyui()
KOHYA = kohya(
    "sd-scripts",
    module="networks.lora_flux",
    only=("transformer_blocks.", "single_transformer_blocks.", "x_embedder", "context_embedder", "time_text_embed."),
)


def kohya_metadata(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns what sd-scripts writes about this base."""
    return described("flux1", "flux-1-dev" if config.get("guidance_embeds") else "flux-1-schnell")


_DOUBLE = {
    **renamed(
        {
            "norm1.linear": "img_mod.lin",
            "norm1_context.linear": "txt_mod.lin",
            "attn.to_out.0": "img_attn.proj",
            "attn.to_add_out": "txt_attn.proj",
            "attn.norm_q.weight": "img_attn.norm.query_norm.scale",
            "attn.norm_k.weight": "img_attn.norm.key_norm.scale",
            "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale",
            "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale",
            "ff.net.0.proj": "img_mlp.0",
            "ff.net.2": "img_mlp.2",
            "ff_context.net.0.proj": "txt_mlp.0",
            "ff_context.net.2": "txt_mlp.2",
        }
    ),
    **stacked("img_attn.qkv", "attn.to_q", "attn.to_k", "attn.to_v"),
    **stacked("txt_attn.qkv", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
_SINGLE = {
    **renamed(
        {
            "norm.linear": "modulation.lin",
            "proj_out": "linear2",
            "attn.norm_q.weight": "norm.query_norm.scale",
            "attn.norm_k.weight": "norm.key_norm.scale",
        }
    ),
    **stacked("linear1", "attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
}
_LAYERS = {
    **renamed(
        {
            "x_embedder": "img_in",
            "context_embedder": "txt_in",
            "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
            "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
            "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
            "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
            "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
            "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
            "proj_out": "final_layer.linear",
        }
    ),
    **swapped("norm_out.linear", "final_layer.adaLN_modulation.1"),
}


def layout(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the original names for a transformer with this configuration."""
    return OriginalLayout(
        {
            **{f"transformer_blocks.{i}": (f"double_blocks.{i}", _DOUBLE) for i in range(config["num_layers"])},
            **{
                f"single_transformer_blocks.{i}": (f"single_blocks.{i}", _SINGLE)
                for i in range(config["num_single_layers"])
            },
        },
        _LAYERS,
    )


SINGLE_FILE = SingleFile(
    {"transformer": FilePart(layout)}, "diffusion_models", {"num_attention_heads": 24, "attention_head_dim": 128}
)
