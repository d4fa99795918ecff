"""DiT (arXiv:2212.09748): a transformer conditioned on an ImageNet class, not on a caption."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.objectives import Objective, denoising
from foretune.models.transformer import LatentTransformer


class Dit(LatentTransformer):
    """It also predicts the variance, which the loss ignores. Images are square."""

    facts = family_facts("dit")
    denoiser_class_name = "DiTTransformer2DModel"

    def default_resolution_px(self) -> int:
        return int(self.architecture.denoiser["sample_size"]) * self._vae_factor()

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        return {"class_labels": TensorSpec((batch_size,), torch.int64)}

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
        predicted: Tensor = denoiser(
            hidden_states=noisy, timestep=time, class_labels=conditioning["class_labels"], return_dict=False
        )[0]
        return predicted[:, : noisy.shape[1]]
