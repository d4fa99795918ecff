"""Wan 2.1 and 2.2: self-attention over video, cross-attention to text and, for image-to-video, to the image."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.core.errors import Refused
from foretune.models.family import GUIDE, Conditioning, TensorSpec
from foretune.models.objectives import Objective
from foretune.models.trainable import TrainableFamily
from foretune.models.video import VideoTransformer

_NUM_IMAGE_TOKENS = 257  # CLIP ViT-H/14 at 224 px: 16 x 16 patches and one class token
_IMAGE_EMBEDS = "image_embeds"


class Wan(VideoTransformer, TrainableFamily):
    """Image-to-video models get the image's latents and a mask, concatenated to the noisy latents."""

    facts = family_facts("wan")
    denoiser_class_name = "WanTransformer3DModel"
    autoencoder_class_name = "AutoencoderKLWan"
    text_parts = ("text_encoder", "tokenizer")
    default_text_tokens = 512
    stacks = (("blocks", "num_layers"),)

    def refuse_variant(self, whose: str) -> None:
        if self.architecture.denoiser.get("pos_embed_seq_len") is not None:
            raise Refused(
                f"{whose} is given a first and a last frame, which cannot be trained yet. Nearest: Wan 2.1 I2V"
            )

    @property
    def text_is_fixed(self) -> bool:
        # diffusers' attention counts 512 tokens of text; what is before them is the image.
        return self._reads_image

    @property
    def takes_first_frame(self) -> bool:
        return self.num_guide_channels() > 0

    @property
    def image_parts(self) -> tuple[str, ...]:
        return ("image_encoder", "image_processor") if self._reads_image else ()

    def pipeline_class(self) -> Any:
        if not self.takes_first_frame:
            return super().pipeline_class()
        from diffusers import WanImageToVideoPipeline

        return WanImageToVideoPipeline

    def objective(self, choice: ObjectiveChoice) -> Objective:
        # As musubi-tuner recommends for Wan: a sigmoid of normal numbers, shifted as in sampling.
        return self._flow_matching(choice, "logit_normal", self._scheduler_value("flow_shift", 3.0))

    # ---- captions and first frames

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, _ = encoders.encode_prompt(
            prompt=list(captions), do_classifier_free_guidance=False, max_sequence_length=num_text_tokens
        )
        return {"prompt_embeds": prompt}

    def load_image_encoder(self, folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
        if not self.image_parts:
            return None
        left_out = dict.fromkeys((*self.text_parts, self.denoiser_part, "vae"))
        return self.load_pipeline(folder, dtype, **left_out).to(device)

    def encode_first_frames(self, vae: Any, image_encoder: Any, clips: Tensor) -> Conditioning:
        if not self.takes_first_frame:
            return {}
        only_first = torch.zeros_like(clips)
        only_first[:, :, 0] = clips[:, :, 0]
        mean, _ = self.encode_images(vae, only_first).chunk(2, dim=1)
        known = torch.zeros_like(mean[:, :1]).repeat(1, self.frames_per_latent(), 1, 1, 1)
        known[:, :, 0] = 1
        guide = torch.cat([known, self._scaled(mean)], dim=1)
        return {GUIDE: guide, **self.embed_frames(image_encoder, clips[:, :, 0])}

    def embed_frames(self, image_encoder: Any, frames: Tensor) -> Conditioning:
        if not self._reads_image:
            return {}
        # In 8 bits, as the pipeline gets an image.
        pixels = ((frames.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        return {_IMAGE_EMBEDS: image_encoder.encode_image(list(pixels.cpu()))}

    def give_first_frame(self, pipeline: Any, conditioning: Conditioning) -> None:
        if _IMAGE_EMBEDS in conditioning:
            # It takes embeddings only in the place of the image, which it needs all the same.
            pipeline.encode_image = lambda *_: conditioning[_IMAGE_EMBEDS]

    # ---- shapes

    def default_size_px(self) -> tuple[int, int]:
        return (704, 1280) if self._is_high_compression else (480, 832)

    def default_num_frames(self) -> int:
        return 121 if self._is_high_compression else 81

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        specs = {"prompt_embeds": TensorSpec((batch_size, num_text_tokens, config["text_dim"]))}
        if self._reads_image:
            specs[_IMAGE_EMBEDS] = TensorSpec((batch_size, _NUM_IMAGE_TOKENS, config["image_dim"]))
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
            encoder_hidden_states_image=conditioning.get(_IMAGE_EMBEDS),
            return_dict=False,
        )[0]
        return predicted

    @property
    def _reads_image(self) -> bool:
        """Whether it attends to an embedding of the first frame: models of 2.1 do."""
        return self.architecture.denoiser.get("image_dim") is not None

    @property
    def _is_high_compression(self) -> bool:
        """Whether it is Wan 2.2 5B, whose latents are 16 times smaller than the frames."""
        return self._vae_factor() > 8  # noqa: PLR2004 - the factor of the others

    def _patch_size(self) -> int:
        return int(self.architecture.denoiser["patch_size"][-1])

    def _vae_factor(self) -> int:
        # Files of the first releases leave out what was not a setting then.
        return int(self._vae.get("scale_factor_spatial", 8))

    def frames_per_latent(self) -> int:
        return int(self._vae.get("scale_factor_temporal", 4))
