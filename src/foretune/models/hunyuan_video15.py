"""HunyuanVideo 1.5: double-stream blocks over video, two kinds of text and an image."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import GUIDE, Conditioning, TensorSpec
from foretune.models.video import VideoTransformer

_NUM_GLYPH_TOKENS = 256
_NUM_IMAGE_TOKENS = 729


class HunyuanVideo15(VideoTransformer):
    """The noisy latents are concatenated with those of a first frame and a mask that marks it."""

    facts = family_facts("hunyuan_video15")
    denoiser_class_name = "HunyuanVideo15Transformer3DModel"
    goes_by_samples = True
    default_text_tokens = 1000
    usual_num_frames = 121

    def default_size_px(self) -> tuple[int, int]:
        """Returns a wide size with as many pixels as a square of the model's target size."""
        target_px = int(self.architecture.denoiser["target_size"])
        height_px = target_px * 3 // 4
        multiple_px = self.size_multiple_px()
        return (height_px, target_px**2 // height_px // multiple_px * multiple_px)

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, config["text_embed_dim"])),
            "prompt_mask": TensorSpec((batch_size, num_text_tokens), torch.bool),
            "glyph_embeds": TensorSpec((batch_size, _NUM_GLYPH_TOKENS, config["text_embed_2_dim"])),
            "glyph_mask": TensorSpec((batch_size, _NUM_GLYPH_TOKENS), torch.bool),
            "image_embeds": TensorSpec((batch_size, _NUM_IMAGE_TOKENS, config["image_embed_dim"])),
        }

    def num_guide_channels(self) -> int:
        return int(self.architecture.denoiser["in_channels"]) - self._vae_channels()

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
            hidden_states=torch.cat([noisy, conditioning[GUIDE]], dim=1),
            timestep=time,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_attention_mask=conditioning["prompt_mask"],
            encoder_hidden_states_2=conditioning["glyph_embeds"],
            encoder_attention_mask_2=conditioning["glyph_mask"],
            image_embeds=conditioning["image_embeds"],
            return_dict=False,
        )[0]
        return predicted

    # The catalogue has no row for its autoencoder; these are the defaults of the class (diffusers,
    # AutoencoderKLHunyuanVideo15).

    def _vae_factor(self) -> int:
        return 16 if self.architecture.vae is None else super()._vae_factor()

    def frames_per_latent(self) -> int:
        return 4 if self.architecture.vae is None else super().frames_per_latent()

    def _vae_channels(self) -> int:
        return int(self.architecture.denoiser["out_channels"])

    def _scaled(self, sample: Tensor) -> Tensor:
        return sample * 1.03682 if self.architecture.vae is None else super()._scaled(sample)
