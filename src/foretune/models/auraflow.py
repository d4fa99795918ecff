"""AuraFlow: a few joint blocks, then many blocks over text and image in one sequence."""

from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.transformer import LatentTransformer


class AuraFlow(LatentTransformer):
    """Its learned position embeddings limit the image size."""

    facts = family_facts("auraflow")
    denoiser_class_name = "AuraFlowTransformer2DModel"
    default_text_tokens = 256
    stacks = (
        ("joint_transformer_blocks", "num_mmdit_layers"),
        ("single_transformer_blocks", "num_single_dit_layers"),
    )

    def default_resolution_px(self) -> int:
        return int(self.architecture.denoiser["sample_size"]) * self._vae_factor()

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
        predicted: Tensor = denoiser(
            hidden_states=noisy,
            encoder_hidden_states=conditioning["prompt_embeds"],
            timestep=time / 1000,
            return_dict=False,
        )[0]
        return predicted

    def _vae_factor(self) -> int:
        # The catalogue does not name its autoencoder; a sample size of 64 with four channels for 512 px implies it.
        return 8 if self.architecture.vae is None else super()._vae_factor()

    def _vae_channels(self) -> int:
        return int(self.architecture.denoiser["in_channels"])

    def _scaled(self, sample: Tensor) -> Tensor:
        return sample if self.architecture.vae is None else super()._scaled(sample)
