"""Stable Diffusion 1 and 2: a UNet with the text of one CLIP."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from foretune.catalog import family_facts
from foretune.models.family import Conditioning
from foretune.models.trainable import TrainableFamily
from foretune.models.unet import TextToImageUNet


class StableDiffusion1(TextToImageUNet, TrainableFamily):
    """The original UNet. Version 2 differs in the width of the text; its models for 768 px predict the velocity."""

    facts = family_facts("sd1")
    text_parts = ("text_encoder", "tokenizer")
    default_text_tokens = 77

    def load_pipeline(self, folder: Path, dtype: torch.dtype, **parts: Any) -> Any:
        # The safety checker replaces some pictures by black ones, and takes 1.2 GB. An export keeps that of its base.
        checker = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
        return super().load_pipeline(folder, dtype, **checker, **parts)

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, _ = encoders.encode_prompt(
            list(captions), encoders.device, num_images_per_prompt=1, do_classifier_free_guidance=False
        )
        return {"prompt_embeds": prompt}

    def sampling_arguments(self, num_text_tokens: int, guidance_scale: float | None) -> dict[str, Any]:
        return {} if guidance_scale is None else {"guidance_scale": guidance_scale}
