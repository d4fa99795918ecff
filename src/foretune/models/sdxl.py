"""Stable Diffusion XL: a larger UNet with the text of two CLIPs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretune.catalog import family_facts
from foretune.choices.model import read_json
from foretune.models.family import Conditioning, numbers_on
from foretune.models.trainable import TrainableFamily
from foretune.models.unet import SizedUNet


class StableDiffusionXl(SizedUNet, TrainableFamily):
    """Ten transformer blocks at the lowest resolution."""

    facts = family_facts("sdxl")
    text_parts = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    default_text_tokens = 77

    def load_pipeline(self, folder: Path, dtype: torch.dtype, **parts: Any) -> Any:
        # Left out, pictures would have a watermark where a certain package is installed.
        return super().load_pipeline(folder, dtype, add_watermarker=False, **parts)

    def text_settings(self, folder: Path) -> str:
        zeroes = read_json(folder / "model_index.json").get("force_zeros_for_empty_prompt", True)
        return "zeros without a caption" if zeroes else ""

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, _, pooled, _ = encoders.encode_prompt(prompt=list(captions), do_classifier_free_guidance=False)
        if encoders.config.force_zeros_for_empty_prompt:
            # Without a caption the base was trained on zeros, and its pipeline guides away from them.
            is_empty = numbers_on(prompt.device, [not caption for caption in captions])
            prompt = prompt.masked_fill(is_empty[:, None, None], 0.0)
            pooled = pooled.masked_fill(is_empty[:, None], 0.0)
        return {"prompt_embeds": prompt, "pooled_embeds": pooled}

    def image_conditioning(self, framing: Tensor) -> Conditioning:
        return {"time_ids": framing}

    def sampling_arguments(self, num_text_tokens: int, guidance_scale: float | None) -> dict[str, Any]:
        return {} if guidance_scale is None else {"guidance_scale": guidance_scale}
