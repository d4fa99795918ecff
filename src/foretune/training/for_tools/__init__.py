"""Exports for other programs than diffusers: adapters for ComfyUI and kohya's trainers, whole models in one file."""
