"""Ovis-Image: FLUX's arrangement of blocks over packed latents, with a language model's captions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.objectives import Objective
from foretune.models.packing import grid_positions, pack_patches, unpack_patches
from foretune.models.trainable import TrainableFamily
from foretune.models.transformer import LatentTransformer


class OvisImage(LatentTransformer, TrainableFamily):
    """Text tokens lie on the diagonal of the image's grid of positions."""

    facts = family_facts("ovis_image")
    denoiser_class_name = "OvisImageTransformer2DModel"
    text_parts = ("text_encoder", "tokenizer")
    default_text_tokens = 256
    most_text_tokens = 256
    stacks = (("transformer_blocks", "num_layers"), ("single_transformer_blocks", "num_single_layers"))

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["joint_attention_dim"]
        return {"prompt_embeds": TensorSpec((batch_size, num_text_tokens, width))}

    def objective(self, choice: ObjectiveChoice) -> Objective:
        # As the authors draw noise levels (`sample_timesteps` of AIDC-AI/Ovis-Image at ab01d3c).
        return self._flow_matching(choice, "logit_normal", self._static_shift())

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        height, width = noisy.shape[-2:]
        prompt = conditioning["prompt_embeds"]
        places = torch.arange(prompt.shape[1], device=noisy.device, dtype=noisy.dtype)
        predicted = denoiser(
            hidden_states=pack_patches(noisy),
            timestep=time / 1000,
            encoder_hidden_states=prompt,
            txt_ids=torch.stack([torch.zeros_like(places), places, places], dim=1),
            img_ids=grid_positions(height // 2, width // 2, noisy),
            return_dict=False,
        )[0]
        return unpack_patches(predicted, noisy.shape)

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, *_ = encoders.encode_prompt(
            prompt=list(captions), do_classifier_free_guidance=False, max_sequence_length=num_text_tokens
        )
        return {"prompt_embeds": prompt}

    def sampling_arguments(self, num_text_tokens: int, guidance_scale: float | None) -> dict[str, Any]:
        # The pipeline's default is an empty text, which it refuses beside an encoded one; it takes None for either.
        return {**super().sampling_arguments(num_text_tokens, guidance_scale), "negative_prompt": None}

    def _patch_size(self) -> int:
        return 2  # the denoiser's patch size counts tokens that are already packed
