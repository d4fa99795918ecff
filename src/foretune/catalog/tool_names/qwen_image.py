"""Qwen-Image: layers have diffusers' names in ComfyUI (at acbf08c), too."""

from foretune.catalog.tool_names.forms import comfyui

COMFYUI = comfyui(only=("transformer_blocks.",))
