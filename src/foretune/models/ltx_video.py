"""LTX-Video: few tokens, because its autoencoder compresses 32 times in space and 8 times in time."""

from collections.abc import Sequence
from math import lcm
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.core.errors import Refused
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.objectives import Objective
from foretune.models.trainable import TrainableFamily
from foretune.models.video import VideoTransformer

_FRAMES_PER_S = 25  # The default of the pipeline, and of the authors' trainer.
_PIPELINE_MULTIPLE_PX = 32
# The authors' trainer shifts by exp(0.95) for 1,024 tokens to exp(2.05) for 4,096: this is 49 frames of 768 x 512 px.
_SHIFT = 4.7


class LtxVideo(VideoTransformer, TrainableFamily):
    """Reads T5 captions by cross-attention.

    Mean and standard deviation of the latents are weights of the autoencoder, so latents are normalised where it is at
    hand.
    """

    facts = family_facts("ltx_video")
    denoiser_class_name = "LTXVideoTransformer3DModel"
    autoencoder_class_name = "AutoencoderKLLTXVideo"
    text_parts = ("text_encoder", "tokenizer")
    default_text_tokens = 128
    usual_size_px = (512, 704)
    usual_num_frames = 161

    def refuse_variant(self, whose: str) -> None:
        if any(self._vae.get("decoder_inject_noise", ())):
            raise Refused(
                f"{whose} has an autoencoder that adds noise of its own when it decodes (LTX-Video 0.9.1), so that "
                "samples could not be repeated. Nearest: Lightricks/LTX-Video, version 0.9"
            )

    def size_multiple_px(self) -> int:
        return lcm(super().size_multiple_px(), _PIPELINE_MULTIPLE_PX)

    def objective(self, choice: ObjectiveChoice) -> Objective:
        return self._flow_matching(choice, "logit_normal", _SHIFT)

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["caption_channels"]
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, width)),
            "prompt_mask": TensorSpec((batch_size, num_text_tokens), torch.bool),
        }

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, mask, _, _ = encoders.encode_prompt(
            prompt=list(captions), do_classifier_free_guidance=False, max_sequence_length=num_text_tokens
        )
        return {"prompt_embeds": prompt, "prompt_mask": mask.bool()}

    def encode_images(self, vae: Any, images: Tensor) -> Tensor:
        mean, log_variance = super().encode_images(vae, images).chunk(2, dim=1)
        of_all, std = _normalisation(vae)
        return torch.cat([(mean - of_all) / std, log_variance - 2 * std.log()], dim=1)

    def images_from_latents(self, vae: Any, latents: Tensor) -> Tensor:
        mean, std = _normalisation(vae)
        unscaled = latents * std / float(self._vae["scaling_factor"]) + mean
        # Later decoders also denoise; zero is the pipeline's default for what is left to denoise.
        time = latents.new_zeros(len(latents)).to(vae.dtype) if self._vae.get("timestep_conditioning") else None
        images: Tensor = vae.decode(unscaled.to(vae.dtype), time, return_dict=False)[0]
        return images.float()

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        num_frames, height, width = noisy.shape[2:]
        factor = self._vae_factor()
        predicted: Tensor = denoiser(
            hidden_states=noisy.flatten(2).transpose(1, 2),
            encoder_hidden_states=conditioning["prompt_embeds"],
            timestep=time,
            encoder_attention_mask=conditioning["prompt_mask"],
            num_frames=num_frames,
            height=height,
            width=width,
            # Positions are in seconds and pixels.
            rope_interpolation_scale=(self.frames_per_latent() / _FRAMES_PER_S, factor, factor),
            return_dict=False,
        )[0]
        return predicted.transpose(1, 2).reshape(noisy.shape)

    def _vae_factor(self) -> int:
        stated = self._vae.get("spatial_compression_ratio")
        return int(stated or self._vae["patch_size"] * self._halvings())

    def frames_per_latent(self) -> int:
        stated = self._vae.get("temporal_compression_ratio")
        return int(stated or self._vae["patch_size_t"] * self._halvings())

    def _halvings(self) -> int:
        return int(2 ** sum(self._vae["spatio_temporal_scaling"]))

    def _scaled(self, sample: Tensor) -> Tensor:
        return sample * float(self._vae["scaling_factor"])


def _normalisation(vae: Any) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation of the autoencoder's latents, for each channel."""
    mean, std = (values.float().view(1, -1, 1, 1, 1) for values in (vae.latents_mean, vae.latents_std))
    return mean, std
