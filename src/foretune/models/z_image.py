"""Z-Image: refines text and image separately, then processes them in one sequence."""

from typing import Self

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.transformer import LatentTransformer


class ZImage(LatentTransformer):
    """Its time and its prediction run from noise to image."""

    facts = family_facts("z_image")
    denoiser_class_name = "ZImageTransformer2DModel"
    goes_by_samples = True
    default_text_tokens = 512
    stacks = (("noise_refiner", "n_refiner_layers"), ("context_refiner", "n_refiner_layers"), ("layers", "n_layers"))

    def with_depths(self, depths: tuple[int, ...]) -> Self:
        noise, context, _ = depths
        assert noise == context, "one number counts both kinds of refiner"
        return super().with_depths(depths)

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["cap_feat_dim"]
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
        predicted = denoiser(
            x=list(noisy.unsqueeze(2).unbind(0)),
            t=1 - time / 1000,
            cap_feats=list(conditioning["prompt_embeds"].unbind(0)),
            patch_size=self._patch_size(),
            return_dict=False,
        )[0]
        return -torch.stack(predicted).squeeze(2)

    def _patch_size(self) -> int:
        return int(self.architecture.denoiser["all_patch_size"][0])
