"""FLUX.2: double-stream blocks, then single-stream blocks with attention and feed-forward in parallel."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.packing import grid_positions
from foretune.models.transformer import LatentTransformer


class Flux2(LatentTransformer):
    """Its autoencoder folds 2x2 patches into the channels, so one latent is one token."""

    facts = family_facts("flux2")
    denoiser_class_name = "Flux2Transformer2DModel"
    default_text_tokens = 512
    stacks = (("transformer_blocks", "num_layers"), ("single_transformer_blocks", "num_single_layers"))

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["joint_attention_dim"]
        return {"prompt_embeds": TensorSpec((batch_size, num_text_tokens, width))}

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
        prompt = conditioning["prompt_embeds"]
        has_guidance = bool(self.architecture.denoiser.get("guidance_embeds", True))
        predicted: Tensor = denoiser(
            hidden_states=noisy.flatten(2).transpose(1, 2),
            encoder_hidden_states=prompt,
            timestep=time / 1000,
            # Four coordinates: time, row, column, and the index of the text token.
            img_ids=nn.functional.pad(grid_positions(height, width, time), (0, 1)),
            txt_ids=nn.functional.pad(torch.arange(prompt.shape[1], device=noisy.device)[:, None], (3, 0)),
            guidance=torch.full((batch,), guidance_scale, device=noisy.device) if has_guidance else None,
            return_dict=False,
        )[0]
        return predicted.transpose(1, 2).reshape(noisy.shape)

    def _vae_factor(self) -> int:
        return super()._vae_factor() * int(self._vae["patch_size"][0])

    def _vae_channels(self) -> int:
        rows, columns = self._vae["patch_size"]
        return super()._vae_channels() * int(rows) * int(columns)

    def _scaled(self, sample: Tensor) -> Tensor:
        # The mean and variance for normalisation are weights of the autoencoder, not part of its configuration.
        return sample
