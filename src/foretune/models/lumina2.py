"""Lumina-Image 2.0: refines text and image separately, then processes them in one sequence."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.transformer import LatentTransformer


class Lumina2(LatentTransformer):
    """Its time and its prediction run from noise to image."""

    facts = family_facts("lumina2")
    denoiser_class_name = "Lumina2Transformer2DModel"
    goes_by_samples = True
    default_text_tokens = 256
    stacks = (("layers", "num_layers"),)

    def default_resolution_px(self) -> int:
        return int(self.architecture.denoiser["sample_size"]) * self._vae_factor()

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["cap_feat_dim"]
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
            timestep=1 - time / 1000,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_attention_mask=conditioning["prompt_mask"],
            return_dict=False,
        )[0]
        return -predicted
