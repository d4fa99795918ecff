"""Stable Diffusion XL: a larger UNet that is also conditioned on the image size and a pooled caption."""

from torch import Tensor

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.unet import TextToImageUNet

_NUM_TIME_IDS = 6  # original size, crop corner, target size


class StableDiffusionXl(TextToImageUNet):
    """The text of two CLIPs, and ten transformer blocks at the lowest resolution."""

    facts = family_facts("sdxl")
    default_text_tokens = 77
    text_is_fixed = True

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        # One projection takes the pooled caption and the embedded sizes together.
        pooled_width = (
            config["projection_class_embeddings_input_dim"] - _NUM_TIME_IDS * config["addition_time_embed_dim"]
        )
        return {
            **super().conditioning_specs(batch_size, num_text_tokens),
            "pooled_embeds": TensorSpec((batch_size, pooled_width)),
            "time_ids": TensorSpec((batch_size, _NUM_TIME_IDS)),
        }

    def _added(self, conditioning: Conditioning) -> dict[str, Tensor] | None:
        return {"text_embeds": conditioning["pooled_embeds"], "time_ids": conditioning["time_ids"]}
