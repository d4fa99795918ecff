"""LTX-Video: few tokens, because its autoencoder compresses 32 times in space and 8 times in time."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.video import VideoTransformer

_FRAMES_PER_S = 25


class LtxVideo(VideoTransformer):
    """Reads T5 captions by cross-attention."""

    facts = family_facts("ltx_video")
    denoiser_class_name = "LTXVideoTransformer3DModel"
    default_text_tokens = 128
    usual_size_px = (512, 704)
    usual_num_frames = 161

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
        # The mean and deviation for normalisation are weights of the autoencoder, not part of its configuration.
        return sample * float(self._vae["scaling_factor"])
