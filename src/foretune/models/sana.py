"""Sana: linear attention over latents that are 32 times smaller than the image."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.transformer import LatentTransformer


class Sana(LatentTransformer):
    """Reads a language model's text by cross-attention."""

    facts = family_facts("sana")
    denoiser_class_name = "SanaTransformer2DModel"
    default_text_tokens = 300

    def default_resolution_px(self) -> int:
        return int(self.architecture.denoiser["sample_size"]) * self._vae_factor()

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["caption_channels"]
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, width)),
            "prompt_mask": TensorSpec((batch_size, num_text_tokens), torch.bool),
        }

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
            timestep=time * float(self.architecture.denoiser.get("timestep_scale", 1.0)),
            encoder_attention_mask=conditioning["prompt_mask"],
            return_dict=False,
        )[0]
        return predicted

    def _vae_factor(self) -> int:
        return int(2 ** (len(self._vae["encoder_block_out_channels"]) - 1))
