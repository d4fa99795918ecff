"""Krea 2: fuses twelve layers of a language model into the text, then runs one stream with the image."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.packing import grid_positions, pack_patches, unpack_patches
from foretune.models.transformer import LatentTransformer


class Krea2(LatentTransformer):
    """Grouped-query attention: fewer heads for keys and values than for queries."""

    facts = family_facts("krea2")
    denoiser_class_name = "Krea2Transformer2DModel"
    default_text_tokens = 512

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        layers = (config["num_text_layers"], config["text_hidden_dim"])
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, *layers)),
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
        height, width = noisy.shape[-2:]
        prompt = conditioning["prompt_embeds"]
        image_positions = grid_positions(height // 2, width // 2, time)
        predicted = denoiser(
            hidden_states=pack_patches(noisy),
            encoder_hidden_states=prompt,
            timestep=time / 1000,
            position_ids=torch.cat([image_positions.new_zeros(prompt.shape[1], 3), image_positions]),
            encoder_attention_mask=conditioning["prompt_mask"],
            return_dict=False,
        )[0]
        return unpack_patches(predicted, noisy.shape)

    def _patch_size(self) -> int:
        return 2  # the denoiser's patch size counts tokens that are already packed

    def _vae_factor(self) -> int:
        return int(2 ** len(self._vae["temperal_downsample"]))
