"""Qwen-Image: double-stream blocks over a vision-language model's text and packed latents."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.packing import pack_patches, unpack_patches
from foretune.models.trainable import TrainableFamily
from foretune.models.transformer import LatentTransformer


class QwenImage(LatentTransformer, TrainableFamily):
    """Its autoencoder is a video autoencoder; an image is one frame."""

    facts = family_facts("qwen_image")
    denoiser_class_name = "QwenImageTransformer2DModel"
    autoencoder_class_name = "AutoencoderKLQwenImage"
    text_parts = ("text_encoder", "tokenizer")
    text_arguments: ClassVar[Mapping[str, str]] = {
        "prompt_embeds": "prompt_embeds",
        "prompt_mask": "prompt_embeds_mask",
    }
    default_text_tokens = 512
    most_text_tokens = 1024

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["joint_attention_dim"]
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, width)),
            "prompt_mask": TensorSpec((batch_size, num_text_tokens), torch.bool),
        }

    def without_gradient(self) -> tuple[str, ...]:
        # The text's state after the last block.
        last = int(self.architecture.denoiser["num_layers"]) - 1
        return tuple(f"transformer_blocks.{last}.{part}." for part in ("attn.to_add_out", "txt_mlp"))

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        batch, _, height, width = noisy.shape
        predicted = denoiser(
            hidden_states=pack_patches(noisy),
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_hidden_states_mask=conditioning["prompt_mask"],
            timestep=time / 1000,
            img_shapes=[[(1, height // 2, width // 2)]] * batch,
            return_dict=False,
        )[0]
        return unpack_patches(predicted, noisy.shape)

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, mask = encoders.encode_prompt(prompt=list(captions), max_sequence_length=num_text_tokens)
        if mask is None:  # no padding
            mask = prompt.new_ones(prompt.shape[:2])
        missing = num_text_tokens - prompt.shape[1]
        return {
            "prompt_embeds": functional.pad(prompt, (0, 0, 0, missing)),
            "prompt_mask": functional.pad(mask, (0, missing)).bool(),
        }

    def pipeline_text(self, conditioning: Conditioning, unconditional: Conditioning) -> dict[str, Any]:
        return {**super().pipeline_text(conditioning, unconditional), "negative_prompt": None}

    def sampling_arguments(self, num_text_tokens: int, guidance_scale: float | None) -> dict[str, Any]:
        # Without a negative prompt it does not guide; `guidance_scale` is for distilled models only.
        scale = {} if guidance_scale is None else {"true_cfg_scale": guidance_scale}
        return {**super().sampling_arguments(num_text_tokens, None), **scale, "negative_prompt": ""}

    def encode_images(self, vae: Any, images: Tensor) -> Tensor:
        return super().encode_images(vae, images.unsqueeze(2)).squeeze(2)

    def images_from_latents(self, vae: Any, latents: Tensor) -> Tensor:
        return super().images_from_latents(vae, latents.unsqueeze(2)).squeeze(2)

    def _vae_factor(self) -> int:
        return int(2 ** len(self._vae["temperal_downsample"]))
