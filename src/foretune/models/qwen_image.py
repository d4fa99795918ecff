"""Qwen-Image: double-stream blocks over a vision-language model's text and packed latents."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.packing import pack_patches, unpack_patches
from foretune.models.transformer import LatentTransformer


class QwenImage(LatentTransformer):
    """Its autoencoder is a video autoencoder; an image is one frame."""

    facts = family_facts("qwen_image")
    denoiser_class_name = "QwenImageTransformer2DModel"
    default_text_tokens = 512

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["joint_attention_dim"]
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

    def _vae_factor(self) -> int:
        return int(2 ** len(self._vae["temperal_downsample"]))
