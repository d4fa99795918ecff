"""The pixel-space UNet of the CIFAR-10 paper (DDPM, arXiv:2006.11239): no text, no autoencoder."""

from typing import Any

from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.objectives import Objective, denoising
from foretune.models.trainable import TrainableFamily


class Ddpm(TrainableFamily):
    """A UNet that predicts the noise in an image."""

    facts = family_facts("ddpm")
    denoiser_class_name = "UNet2DModel"
    adapter_targets = ("to_q", "to_k", "to_v", "to_out.0")
    kept_in_high_precision = ("time_emb_proj",)

    def blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        return (*denoiser.down_blocks, denoiser.mid_block, *denoiser.up_blocks)

    def latent_shape(self, height_px: int, width_px: int, num_frames: int = 1) -> tuple[int, ...]:
        return (int(self.architecture.denoiser.get("in_channels", 3)), height_px, width_px)

    def size_multiple_px(self) -> int:
        return int(2 ** (len(self.architecture.denoiser["block_out_channels"]) - 1))

    def default_resolution_px(self) -> int:
        return int(self.architecture.denoiser["sample_size"])

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        return {}

    def objective(self, choice: ObjectiveChoice) -> Objective:
        return denoising(self.architecture.scheduler, beta_schedule="linear", betas=(1e-4, 0.02))

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        predicted: Tensor = denoiser(noisy, time, return_dict=False)[0]
        return predicted

    def sampling_arguments(self, num_text_tokens: int, guidance_scale: float | None) -> dict[str, Any]:
        return {}
