"""Wan as Wan-Video/Wan2.1 names it; forms as in ComfyUI at acbf08c and kohya-ss/musubi-tuner at 30c658c."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names.forms import LOW_RANK, FilePart, SingleFile, comfyui_original, describing, kohya
from foretune.catalog.tool_names.layout import OriginalLayout, renamed

COMFYUI = comfyui_original()
KOHYA = kohya(
    "musubi-tuner",
    module="networks.lora_wan",
    kinds=(*LOW_RANK, "loha", "lokr"),
    only=("blocks.",),
)
kohya_metadata = describing("wan", "wan2.1")

_BLOCK = renamed(
    {
        "scale_shift_table": "modulation",
        "norm2": "norm3",
        "ffn.net.0.proj": "ffn.0",
        "ffn.net.2": "ffn.2",
        **{
            f"{attention}.{name}": f"{original}.{old}"
            for attention, original in (("attn1", "self_attn"), ("attn2", "cross_attn"))
            for name, old in (
                ("to_q", "q"),
                ("to_k", "k"),
                ("to_v", "v"),
                ("to_out.0", "o"),
                ("norm_q", "norm_q"),
                ("norm_k", "norm_k"),
            )
        },
        "attn2.add_k_proj": "cross_attn.k_img",
        "attn2.add_v_proj": "cross_attn.v_img",
        "attn2.norm_added_k": "cross_attn.norm_k_img",
    }
)
_LAYERS = renamed(
    {
        "scale_shift_table": "head.modulation",
        "proj_out": "head.head",
        "patch_embedding": "patch_embedding",
        "condition_embedder.time_embedder.linear_1": "time_embedding.0",
        "condition_embedder.time_embedder.linear_2": "time_embedding.2",
        "condition_embedder.time_proj": "time_projection.1",
        "condition_embedder.text_embedder.linear_1": "text_embedding.0",
        "condition_embedder.text_embedder.linear_2": "text_embedding.2",
        "condition_embedder.image_embedder.norm1": "img_emb.proj.0",
        "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
        "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
        "condition_embedder.image_embedder.norm2": "img_emb.proj.4",
    }
)


def layout(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the original names for a transformer with this configuration."""
    return OriginalLayout({f"blocks.{i}": (f"blocks.{i}", _BLOCK) for i in range(config["num_layers"])}, _LAYERS)


SINGLE_FILE = SingleFile({"transformer": FilePart(layout)}, "diffusion_models")
