"""PixArt: ComfyUI (at acbf08c) reads diffusers' names. kohya's trainers do not know it."""

from foretune.catalog.tool_names.forms import comfyui

COMFYUI = comfyui()
