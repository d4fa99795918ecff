"""Tiny pipelines with wide denoisers: their weights decide what fits, as in models that people train."""

import shutil
from pathlib import Path
from typing import Any

import diffusers
import torch

WIDE: dict[str, dict[str, Any]] = {
    "flux": {"num_attention_heads": 24},
    "sdxl": {"block_out_channels": (128, 256), "attention_head_dim": (4, 8)},
}


def widened(tiny: Path, family: str, folder: Path) -> Path:
    """A copy of a tiny pipeline whose denoiser is wide, with weights in bf16."""
    part, name = ("unet", "UNet2DConditionModel") if family == "sdxl" else ("transformer", "FluxTransformer2DModel")
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns(part))
    kind: Any = getattr(diffusers, name)
    config = dict(kind.load_config(tiny / part))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        denoiser = kind.from_config({**config, **WIDE[family]})
    denoiser.to(torch.bfloat16).save_pretrained(folder / part)
    return folder
