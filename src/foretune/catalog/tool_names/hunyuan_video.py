"""HunyuanVideo as Tencent/HunyuanVideo names it; forms as in ComfyUI at acbf08c and musubi-tuner at 30c658c."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names.forms import LOW_RANK, FilePart, SingleFile, comfyui_original, describing, kohya
from foretune.catalog.tool_names.layout import OriginalLayout, renamed, stacked, swapped

COMFYUI = comfyui_original(
    is_stacked=True,
    # ComfyUI renames layers when it loads the model, and reads adapters by its own names.
    renames=(
        ("txt_in.t_embedder.mlp.0", "txt_in.t_embedder.in_layer"),
        ("txt_in.t_embedder.mlp.2", "txt_in.t_embedder.out_layer"),
        ("txt_in.c_embedder.linear_1", "txt_in.c_embedder.in_layer"),
        ("txt_in.c_embedder.linear_2", "txt_in.c_embedder.out_layer"),
        ("_in.mlp.0", "_in.in_layer"),
        ("_in.mlp.2", "_in.out_layer"),
        ("_mod.linear", "_mod.lin"),
        (".modulation.linear", ".modulation.lin"),
        ("_attn_qkv", "_attn.qkv"),
        ("_attn_proj", "_attn.proj"),
        ("mlp.fc1", "mlp.0"),
        ("mlp.fc2", "mlp.2"),
    ),
)
KOHYA = kohya(
    "musubi-tuner",
    kinds=(*LOW_RANK, "loha"),
    only=("transformer_blocks.", "single_transformer_blocks."),
)
kohya_metadata = describing("hunyuan_video", "hunyuan-video")

_DOUBLE = {
    **renamed(
        {
            "norm1.linear": "img_mod.linear",
            "norm1_context.linear": "txt_mod.linear",
            "attn.to_out.0": "img_attn_proj",
            "attn.to_add_out": "txt_attn_proj",
            "attn.norm_q": "img_attn_q_norm",
            "attn.norm_k": "img_attn_k_norm",
            "attn.norm_added_q": "txt_attn_q_norm",
            "attn.norm_added_k": "txt_attn_k_norm",
            "ff.net.0.proj": "img_mlp.fc1",
            "ff.net.2": "img_mlp.fc2",
            "ff_context.net.0.proj": "txt_mlp.fc1",
            "ff_context.net.2": "txt_mlp.fc2",
        }
    ),
    **stacked("img_attn_qkv", "attn.to_q", "attn.to_k", "attn.to_v"),
    **stacked("txt_attn_qkv", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
_SINGLE = {
    **renamed(
        {
            "norm.linear": "modulation.linear",
            "proj_out": "linear2",
            "attn.norm_q": "q_norm",
            "attn.norm_k": "k_norm",
        }
    ),
    **stacked("linear1", "attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
}
_REFINER = {
    **renamed(
        {
            "norm1": "norm1",
            "norm2": "norm2",
            "attn.to_out.0": "self_attn_proj",
            "ff.net.0.proj": "mlp.fc1",
            "ff.net.2": "mlp.fc2",
            "norm_out.linear": "adaLN_modulation.1",
        }
    ),
    **stacked("self_attn_qkv", "attn.to_q", "attn.to_k", "attn.to_v"),
}
_LAYERS = {
    **renamed(
        {
            "x_embedder.proj": "img_in.proj",
            "context_embedder.proj_in": "txt_in.input_embedder",
            "context_embedder.time_text_embed.timestep_embedder.linear_1": "txt_in.t_embedder.mlp.0",
            "context_embedder.time_text_embed.timestep_embedder.linear_2": "txt_in.t_embedder.mlp.2",
            "context_embedder.time_text_embed.text_embedder.linear_1": "txt_in.c_embedder.linear_1",
            "context_embedder.time_text_embed.text_embedder.linear_2": "txt_in.c_embedder.linear_2",
            "time_text_embed.timestep_embedder.linear_1": "time_in.mlp.0",
            "time_text_embed.timestep_embedder.linear_2": "time_in.mlp.2",
            "time_text_embed.guidance_embedder.linear_1": "guidance_in.mlp.0",
            "time_text_embed.guidance_embedder.linear_2": "guidance_in.mlp.2",
            "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
            "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
            "proj_out": "final_layer.linear",
        }
    ),
    **swapped("norm_out.linear", "final_layer.adaLN_modulation.1"),
}


def layout(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the original names for a transformer with this configuration."""
    refiner = "context_embedder.token_refiner.refiner_blocks"
    return OriginalLayout(
        {
            **{f"transformer_blocks.{i}": (f"double_blocks.{i}", _DOUBLE) for i in range(config["num_layers"])},
            **{
                f"single_transformer_blocks.{i}": (f"single_blocks.{i}", _SINGLE)
                for i in range(config["num_single_layers"])
            },
            **{
                f"{refiner}.{i}": (f"txt_in.individual_token_refiner.blocks.{i}", _REFINER)
                for i in range(config["num_refiner_layers"])
            },
        },
        _LAYERS,
    )


SINGLE_FILE = SingleFile(
    {"transformer": FilePart(layout)}, "diffusion_models", {"num_attention_heads": 24, "attention_head_dim": 128}
)
