"""Z-Image: ComfyUI (at acbf08c) maps diffusers' names of the attention to slices of its stacked layers."""

from foretune.catalog.tool_names.forms import comfyui

COMFYUI = comfyui(only=("*.attention.",))
