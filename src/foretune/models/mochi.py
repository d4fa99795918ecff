"""Mochi 1: joint blocks over T5 captions and video, narrower for the text."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.model import read_json
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.trainable import TrainableFamily
from foretune.models.video import VideoTransformer


class Mochi(VideoTransformer, TrainableFamily):
    """Its time and its prediction run from noise to video."""

    facts = family_facts("mochi")
    denoiser_class_name = "MochiTransformer3DModel"
    autoencoder_class_name = "AutoencoderKLMochi"
    text_parts = ("text_encoder", "tokenizer")
    goes_by_samples = True
    default_text_tokens = 256
    usual_size_px = (480, 848)
    usual_num_frames = 19

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["text_embed_dim"]
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, width)),
            "prompt_mask": TensorSpec((batch_size, num_text_tokens), torch.bool),
        }

    def text_settings(self, folder: Path) -> str:
        zeroes = read_json(folder / "model_index.json").get("force_zeros_for_empty_prompt", False)
        return "zeros without a caption" if zeroes else ""

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        # One by one: where an empty caption is encoded as zeros, an empty last one makes all of a batch so.
        encoded = [
            encoders.encode_prompt(
                prompt=[caption], do_classifier_free_guidance=False, max_sequence_length=num_text_tokens
            )
            for caption in captions
        ]
        prompts, masks, _, _ = zip(*encoded, strict=True)
        return {"prompt_embeds": torch.cat(prompts), "prompt_mask": torch.cat(masks).bool()}

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        predicted: Tensor = denoiser(
            hidden_states=noisy,
            encoder_hidden_states=conditioning["prompt_embeds"],
            timestep=1000 - time,
            encoder_attention_mask=conditioning["prompt_mask"],
            return_dict=False,
        )[0]
        return -predicted

    def _vae_factor(self) -> int:
        return prod(self._vae.get("spatial_expansions", (2, 2, 2)))

    def frames_per_latent(self) -> int:
        return prod(self._vae.get("temporal_expansions", (1, 2, 3)))
