"""PixArt-Sigma: a plain transformer with T5 captions by cross-attention."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.objectives import Epsilon, Objective
from foretune.models.transformer import LatentTransformer


class PixArt(LatentTransformer):
    """It also predicts the variance, which the loss ignores."""

    facts = family_facts("pixart")
    denoiser_class_name = "PixArtTransformer2DModel"
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
        return Epsilon(
            num_levels=int(self._scheduler_value("num_train_timesteps", 1000)),
            beta_start=self._scheduler_value("beta_start", 1e-4),
            beta_end=self._scheduler_value("beta_end", 0.02),
        )

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
