"""Lumina-Image 2.0: refines text and image separately, then processes them in one sequence."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.trainable import TrainableFamily
from foretune.models.transformer import LatentTransformer


class Lumina2(LatentTransformer, TrainableFamily):
    """Its time and its prediction run from noise to image."""

    facts = family_facts("lumina2")
    denoiser_class_name = "Lumina2Transformer2DModel"
    text_parts = ("text_encoder", "tokenizer")
    goes_by_samples = True
    default_text_tokens = 256
    stacks = (("layers", "num_layers"),)

    def default_resolution_px(self) -> int:
        return int(self.architecture.denoiser["sample_size"]) * self._vae_factor()

    def max_text_tokens(self) -> int:
        # The image's tokens have the position after the last of the text's.
        return int(self.architecture.denoiser["axes_lens"][0]) - 1

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

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        # As the pipeline does: an instruction before every caption, but none before the empty one of guidance.
        encoded = [
            encoders.encode_prompt([caption], do_classifier_free_guidance=False, max_sequence_length=num_text_tokens)[
                :2
            ]
            if caption
            else encoders._get_gemma_prompt_embeds([caption], max_sequence_length=num_text_tokens)
            for caption in captions
        ]
        prompts, masks = zip(*encoded, strict=True)
        return {"prompt_embeds": torch.cat(prompts), "prompt_mask": torch.cat(masks).bool()}
