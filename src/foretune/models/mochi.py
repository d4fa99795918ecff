"""Mochi 1: joint blocks over T5 captions and video, narrower for the text."""

from math import prod

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.video import VideoTransformer


class Mochi(VideoTransformer):
    """Its time and its prediction run from noise to video."""

    facts = family_facts("mochi")
    denoiser_class_name = "MochiTransformer3DModel"
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
        return prod(self._vae["spatial_expansions"])

    def _vae_frame_factor(self) -> int:
        return prod(self._vae["temporal_expansions"])
