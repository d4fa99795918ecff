"""Wan 2.1 and 2.2: self-attention over video, cross-attention to text and, for image-to-video, to the image."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import GUIDE, Conditioning, TensorSpec
from foretune.models.video import VideoTransformer

_NUM_IMAGE_TOKENS = 257  # CLIP ViT-H/14 at 224 px: 16 x 16 patches and one class token


class Wan(VideoTransformer):
    """Image-to-video models get the image's latents and a mask, concatenated to the noisy latents."""

    facts = family_facts("wan")
    denoiser_class_name = "WanTransformer3DModel"
    default_text_tokens = 512
    stacks = (("blocks", "num_layers"),)

    def default_size_px(self) -> tuple[int, int]:
        return (704, 1280) if self._is_high_compression else (480, 832)

    def default_num_frames(self) -> int:
        return 121 if self._is_high_compression else 81

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        specs = {"prompt_embeds": TensorSpec((batch_size, num_text_tokens, config["text_dim"]))}
        if config.get("image_dim") is not None:
            specs["image_embeds"] = TensorSpec((batch_size, _NUM_IMAGE_TOKENS, config["image_dim"]))
        return specs

    def num_guide_channels(self) -> int:
        config = self.architecture.denoiser
        return int(config["in_channels"]) - int(config["out_channels"])

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        given = torch.cat([noisy, conditioning[GUIDE]], dim=1) if self.num_guide_channels() else noisy
        predicted: Tensor = denoiser(
            hidden_states=given,
            timestep=time,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_hidden_states_image=conditioning.get("image_embeds"),
            return_dict=False,
        )[0]
        return predicted

    @property
    def _is_high_compression(self) -> bool:
        """Whether it is Wan 2.2 5B, whose latents are 16 times smaller than the frames."""
        return self._vae_factor() > 8  # noqa: PLR2004 - the factor of the others

    def _patch_size(self) -> int:
        return int(self.architecture.denoiser["patch_size"][-1])

    def _vae_factor(self) -> int:
        return int(self._vae["scale_factor_spatial"])

    def _vae_frame_factor(self) -> int:
        return int(self._vae["scale_factor_temporal"])
