"""Inputs of denoisers and pipelines for tests: sizes that a family takes, and conditioning made of noise."""

from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from foretune.choices.picture_size import legal_num_frames
from foretune.data.buckets import Bucket
from foretune.models.family import GUIDE, Family
from foretune.models.trainable import TrainableFamily
from foretune.training.sampling import pipeline_size

# Two latent frames of every video family: at least one more than the first, which is alone in its latent frame.
_SHORT_CLIP = 7


def small_size(family: Family, height_px: int = 32, width_px: int = 32) -> Bucket:
    """An image of that size, or a short clip."""
    return Bucket(
        width_px, height_px, legal_num_frames(_SHORT_CLIP, family.frames_per_latent()) if family.is_video else None
    )


def latent_shape(family: Family, size: Bucket) -> tuple[int, ...]:
    return family.latent_shape(size.height_px, size.width_px, size.num_frames or 1)


def made_conditioning(
    family: Family, latents: Tensor, num_text_tokens: int, device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """What the family says a step on these latents needs, made of noise; masks show every token."""
    generator = torch.Generator().manual_seed(7)
    made = {}
    for name, spec in family.conditioning_specs(len(latents), num_text_tokens).items():
        drawn = torch.randn(spec.shape, generator=generator)
        made[name] = (torch.ones_like(drawn, dtype=torch.bool) if spec.dtype == torch.bool else drawn).to(device)
    if channels := family.num_guide_channels():
        shape = (len(latents), channels, *latents.shape[2:])
        made[GUIDE] = torch.randn(shape, generator=generator).to(device)
    return made


def sampling_inputs(family: TrainableFamily, size: Bucket) -> dict[str, Any]:
    """Size and first frame as arguments of the family's pipeline."""
    frame = {"image": gradient_image(size)} if family.takes_first_frame else {}
    return {**pipeline_size(size), **frame}


def gradient_image(size: Bucket) -> Image.Image:
    """A first frame whose places all differ."""
    return Image.linear_gradient("L").resize((size.width_px, size.height_px)).convert("RGB")


def not_in(dtype: torch.dtype, module: nn.Module) -> set[str]:
    """Parameters in another dtype that the class does not keep in fp32."""
    kept = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    return {
        name
        for name, weight in module.named_parameters()
        if weight.dtype != (torch.float32 if kept & set(name.split(".")) else dtype)
    }
