"""Stable Diffusion XL: forms as in ComfyUI at acbf08c and kohya-ss/sd-scripts at 48d368f."""

from foretune.catalog.tool_names.forms import comfyui_unet, described, kohya
from foretune.catalog.tool_names.unet import layout

__all__ = ["COMFYUI", "KOHYA", "KOHYA_METADATA", "SINGLE_FILE_PARTS", "layout"]

COMFYUI = comfyui_unet()
KOHYA = kohya(
    "sd-scripts",
    only=("*.attentions.", "*.resnets.", "*.downsamplers.", "*.upsamplers."),
)
KOHYA_METADATA = described("sdxl_base_v1-0", "stable-diffusion-xl-v1-base")
SINGLE_FILE_PARTS = ("unet", "vae", "text_encoder", "text_encoder_2")
