"""Chroma: ComfyUI (at acbf08c) reads it as a FLUX, and maps diffusers' names of its blocks alike."""

from foretune.catalog.tool_names.forms import comfyui

COMFYUI = comfyui(only=("transformer_blocks.", "single_transformer_blocks."))
