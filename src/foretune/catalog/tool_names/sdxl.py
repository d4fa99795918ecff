"""Stable Diffusion XL: forms as in ComfyUI at acbf08c and kohya-ss/sd-scripts at 48d368f."""

from foretune.catalog.tool_names import text_encoders, vae
from foretune.catalog.tool_names.forms import FilePart, SingleFile, comfyui_unet, describing, kohya
from foretune.catalog.tool_names.unet import layout

__all__ = ["COMFYUI", "KOHYA", "SINGLE_FILE", "kohya_metadata", "layout"]

COMFYUI = comfyui_unet()
KOHYA = kohya(
    "sd-scripts",
    only=("*.attentions.", "*.resnets.", "*.downsamplers.", "*.upsamplers."),
)
kohya_metadata = describing("sdxl_base_v1-0", "stable-diffusion-xl-v1-base")
SINGLE_FILE = SingleFile(
    {
        "unet": FilePart(layout, "model.diffusion_model."),
        "vae": FilePart(vae.layout, "first_stage_model."),
        "text_encoder": FilePart(text_encoders.clip, "conditioner.embedders.0.transformer.text_model."),
        "text_encoder_2": FilePart(text_encoders.open_clip, "conditioner.embedders.1.model."),
    },
    "checkpoints",
)
