"""HiDream-I1: a mixture of experts that reads one layer of a language model in each of its blocks."""

from typing import Any, Self

from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.transformer import LatentTransformer


class HiDream(LatentTransformer):
    """Its prediction points from noise to image."""

    facts = family_facts("hidream")
    denoiser_class_name = "HiDreamImageTransformer2DModel"
    adapter_targets = ("to_q", "to_k", "to_v", "to_out")
    default_text_tokens = 128
    stacks = (("double_stream_blocks", "num_layers"), ("single_stream_blocks", "num_single_layers"))

    def with_depths(self, depths: tuple[int, ...]) -> Self:
        # The last entries name the deepest layer, so the text has the same size at any depth.
        layers = list(self.architecture.denoiser["llama_layers"])[-sum(depths) :]
        return super().with_depths(depths)._with_config({"llama_layers": layers})

    def beside_blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        """Returns the caption projections: each block reads another layer of Llama through its own projection."""
        return tuple(denoiser.caption_projection[: len(self.blocks(denoiser))])

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        width, llama_width = config["caption_channels"]
        num_llama_layers = max(config["llama_layers"]) + 1
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, width)),
            "llama_embeds": TensorSpec((batch_size, num_llama_layers, num_text_tokens, llama_width)),
            "pooled_embeds": TensorSpec((batch_size, config["text_emb_dim"])),
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
        predicted: Tensor = denoiser(
            hidden_states=noisy,
            timesteps=time,
            encoder_hidden_states_t5=conditioning["prompt_embeds"],
            encoder_hidden_states_llama3=conditioning["llama_embeds"].transpose(0, 1),
            pooled_embeds=conditioning["pooled_embeds"],
            return_dict=False,
        )[0]
        if denoiser.training and not self.architecture.denoiser.get("force_inference_output", False):
            predicted = self._from_patches(predicted, noisy)
        return -predicted

    def _from_patches(self, patches: Tensor, noisy: Tensor) -> Tensor:
        """Converts the patches that it returns in training mode, padded unless the image is square, to latents."""
        batch, channels, height, width = noisy.shape
        edge = self._patch_size()
        rows, columns = height // edge, width // edge
        grid = patches[:, :, : rows * columns].reshape(batch, channels, rows, columns, edge, edge)
        return grid.permute(0, 1, 2, 4, 3, 5).reshape(noisy.shape)
