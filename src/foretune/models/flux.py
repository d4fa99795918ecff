"""FLUX.1 dev and schnell: packed latents, CLIP and T5 captions, flow matching."""

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


class Flux(TrainableFamily):
    """Double-stream blocks, then single-stream blocks, over 2x2 patches of latents and text tokens."""

    facts = family_facts("flux")
    denoiser_class_name = "FluxTransformer2DModel"
    text_parts = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    adapter_targets = ("to_q", "to_k", "to_v", "to_out.0")
    default_text_tokens = 512
    most_text_tokens = 512
    stacks = (("transformer_blocks", "num_layers"), ("single_transformer_blocks", "num_single_layers"))

    @property
    def has_guidance(self) -> bool:
        """Whether a guidance scale is embedded: in dev, not in schnell."""
        return bool(self.architecture.denoiser.get("guidance_embeds", False))

    def blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        return (*denoiser.transformer_blocks, *denoiser.single_transformer_blocks)

    def size_multiple_px(self) -> int:
        return self._vae_factor() * 2

    def own_text_tokens(self) -> int:
        """Returns the tokenizer's maximum length, if there is a tokenizer; schnell's is half of dev's."""
        set_to = self.architecture.max_text_tokens
        return set_to or (self.default_text_tokens if self.has_guidance else self.default_text_tokens // 2)

    def default_resolution_px(self) -> int:
        """Returns the autoencoder's sample size, which is FLUX.1's own."""
        return int((self.architecture.vae or {}).get("sample_size", 1024))

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, config["joint_attention_dim"])),
            "pooled_embeds": TensorSpec((batch_size, config["pooled_projection_dim"])),
        }

    def objective(self, choice: ObjectiveChoice) -> Objective:
        # The reference training draws levels uniformly; dev shifts them by image size, but only to sample.
        return self._flow_matching(choice, "uniform", self._static_shift())

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        batch, _, height, width = noisy.shape
        prompt = conditioning["prompt_embeds"]
        guidance = torch.full((batch,), guidance_scale, device=noisy.device) if self.has_guidance else None
        predicted = denoiser(
            hidden_states=pack_patches(noisy),
            timestep=time / 1000,
            guidance=guidance,
            pooled_projections=conditioning["pooled_embeds"],
            encoder_hidden_states=prompt,
            txt_ids=torch.zeros(prompt.shape[1], 3, device=noisy.device, dtype=noisy.dtype),
            img_ids=grid_positions(height // 2, width // 2, noisy),
            return_dict=False,
        )[0]
        return unpack_patches(predicted, noisy.shape)

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, pooled, _ = encoders.encode_prompt(
            prompt=list(captions), prompt_2=None, max_sequence_length=num_text_tokens
        )
        return {"prompt_embeds": prompt, "pooled_embeds": pooled}

    def pipeline_text(self, conditioning: Conditioning, unconditional: Conditioning) -> dict[str, Any]:
        return {
            "prompt_embeds": conditioning["prompt_embeds"],
            "pooled_prompt_embeds": conditioning["pooled_embeds"],
        }
