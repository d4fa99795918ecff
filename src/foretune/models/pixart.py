"""PixArt-Sigma: a plain transformer with T5 captions by cross-attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.objectives import Objective, denoising
from foretune.models.trainable import TrainableFamily
from foretune.models.transformer import LatentTransformer


class PixArt(LatentTransformer, TrainableFamily):
    """It also predicts the variance, which the loss ignores."""

    facts = family_facts("pixart")
    denoiser_class_name = "PixArtTransformer2DModel"
    text_parts = ("text_encoder", "tokenizer")
    default_text_tokens = 300

    def default_resolution_px(self) -> int:
        return int(self.architecture.denoiser["sample_size"]) * self._vae_factor()

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["caption_channels"]
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, width)),
            "prompt_mask": TensorSpec((batch_size, num_text_tokens), torch.bool),
        }

    def objective(self, choice: ObjectiveChoice) -> Objective:
        return denoising(self.architecture.scheduler, beta_schedule="linear", betas=(1e-4, 0.02))

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
            timestep=time,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            encoder_attention_mask=conditioning["prompt_mask"],
            return_dict=False,
        )[0]
        return predicted[:, : noisy.shape[1]]

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, mask, *_ = encoders.encode_prompt(
            list(captions), do_classifier_free_guidance=False, max_sequence_length=num_text_tokens
        )
        return {"prompt_embeds": prompt, "prompt_mask": mask.bool()}

    def pipeline_text(self, conditioning: Conditioning, unconditional: Conditioning) -> dict[str, Any]:
        # Its default negative prompt is an empty text, which it refuses beside an encoded one.
        return {**super().pipeline_text(conditioning, unconditional), "negative_prompt": None}

    def sampling_arguments(self, num_text_tokens: int, guidance_scale: float | None) -> dict[str, Any]:
        # Captions as they are, and images of the asked size instead of the nearest that the authors trained on.
        as_asked = {"clean_caption": False, "use_resolution_binning": False}
        return {**super().sampling_arguments(num_text_tokens, guidance_scale), **as_asked}
