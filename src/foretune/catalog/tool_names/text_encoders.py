"""Text encoders of Stable Diffusion as its checkpoints name them: OpenAI's CLIP, and OpenCLIP."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names.layout import OriginalLayout, OriginalPlace, renamed, stacked

_BLOCK = {
    **renamed(
        {
            "layer_norm1": "ln_1",
            "layer_norm2": "ln_2",
            "mlp.fc1": "mlp.c_fc",
            "mlp.fc2": "mlp.c_proj",
            "self_attn.out_proj": "attn.out_proj",
        }
    ),
    **{
        name: place
        for leaf in ("weight", "bias")
        for name, place in stacked(f"attn.in_proj_{leaf}", *(f"self_attn.{side}_proj.{leaf}" for side in "qkv")).items()
    },
}


def clip(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the names of OpenAI's CLIP, which are those of transformers."""
    blocks = {f"encoder.layers.{i}": (f"encoder.layers.{i}", None) for i in range(config["num_hidden_layers"])}
    names = ("embeddings.token_embedding", "embeddings.position_embedding", "final_layer_norm")
    return OriginalLayout(blocks, renamed({name: name for name in names}))


def open_clip(config: Mapping[str, Any]) -> OriginalLayout:
    """Returns the names of OpenCLIP, which has the projections of attention in one."""
    return OriginalLayout(
        {f"encoder.layers.{i}": (f"transformer.resblocks.{i}", _BLOCK) for i in range(config["num_hidden_layers"])},
        {
            **renamed(
                {
                    "embeddings.token_embedding": "token_embedding",
                    "embeddings.position_embedding.weight": "positional_embedding",
                    "final_layer_norm": "ln_final",
                }
            ),
            "text_projection.weight": OriginalPlace("text_projection", is_transposed=True),
        },
    )
