"""Stable Diffusion 1 and 2: forms as in ComfyUI at acbf08c and kohya-ss/sd-scripts at 48d368f."""

from collections.abc import Mapping
from typing import Any

from foretune.catalog.tool_names import text_encoders, vae
from foretune.catalog.tool_names.forms import FilePart, SingleFile, comfyui_unet, described, kohya
from foretune.catalog.tool_names.unet import layout

__all__ = ["COMFYUI", "KOHYA", "SINGLE_FILE", "kohya_metadata", "layout"]

COMFYUI = comfyui_unet()
# sd-scripts names the layers of this UNet as diffusers does.
KOHYA = kohya(
    "sd-scripts",
    only=("*.attentions.", "*.resnets.", "*.downsamplers.", "*.upsamplers."),
    is_original=False,
)
_WIDTH_OF_SECOND = 1024
SINGLE_FILE = SingleFile(
    {
        "unet": FilePart(layout, "model.diffusion_model."),
        "vae": FilePart(vae.layout, "first_stage_model."),
        "text_encoder": FilePart(text_encoders.clip, "cond_stage_model.transformer.text_model."),
    },
    "checkpoints",
)


def kohya_metadata(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns what sd-scripts writes about this base; the second version reads wider captions."""
    is_second = config["cross_attention_dim"] == _WIDTH_OF_SECOND
    return described("sd_v2" if is_second else "sd_v1", f"stable-diffusion-{'v2-512' if is_second else 'v1'}")
