"""Ovis-Image: ComfyUI (at acbf08c) reads it as a FLUX whose feed-forwards differ, and maps names as if they did not."""

from foretune.catalog.tool_names.forms import comfyui

COMFYUI = comfyui(only=("*.attn.",))
