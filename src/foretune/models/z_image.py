"""Z-Image: refines text and image separately, then processes them in one sequence."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.trainable import TrainableFamily
from foretune.models.transformer import LatentTransformer


class ZImage(LatentTransformer, TrainableFamily):
    """Its time and its prediction run from noise to image; it reads the tokens of a caption and no padding."""

    facts = family_facts("z_image")
    denoiser_class_name = "ZImageTransformer2DModel"
    text_parts = ("text_encoder", "tokenizer")
    read_by_host = ("prompt_mask",)
    goes_by_samples = True
    default_text_tokens = 512
    stacks = (("noise_refiner", "n_refiner_layers"), ("context_refiner", "n_refiner_layers"), ("layers", "n_layers"))

    def max_text_tokens(self) -> int:
        # Captions are filled up to a multiple of 32; their positions begin at 1, and the image has the one after them.
        return (int(self.architecture.denoiser["axes_lens"][0]) - 2) // 32 * 32

    def with_depths(self, depths: tuple[int, ...]) -> Self:
        noise, context, _ = depths
        assert noise == context, "one number counts both kinds of refiner"
        return super().with_depths(depths)

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["cap_feat_dim"]
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
        predicted = denoiser(
            x=list(noisy.unsqueeze(2).unbind(0)),
            t=1 - time / 1000,
            cap_feats=_without_padding(conditioning),
            patch_size=self._patch_size(),
            return_dict=False,
        )[0]
        return -torch.stack(predicted).squeeze(2)

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        found, _ = encoders.encode_prompt(
            prompt=list(captions), do_classifier_free_guidance=False, max_sequence_length=num_text_tokens
        )
        lengths = torch.tensor([len(tokens) for tokens in found])
        padded = found[0].new_zeros(len(found), num_text_tokens, found[0].shape[1])
        for row, tokens in zip(padded, found, strict=True):
            row[: len(tokens)] = tokens
        return {"prompt_embeds": padded, "prompt_mask": torch.arange(num_text_tokens) < lengths[:, None]}

    def pipeline_text(self, conditioning: Conditioning, unconditional: Conditioning) -> dict[str, Any]:
        return {
            "prompt_embeds": _without_padding(conditioning),
            "negative_prompt_embeds": _without_padding(unconditional),
        }

    def _patch_size(self) -> int:
        return int(self.architecture.denoiser["all_patch_size"][0])


def _without_padding(conditioning: Conditioning) -> list[Tensor]:
    """Returns the tokens of each caption; the model itself fills them up to a multiple of 32."""
    prompts, lengths = conditioning["prompt_embeds"], conditioning["prompt_mask"].sum(dim=1).tolist()
    return [prompt[:length] for prompt, length in zip(prompts.unbind(0), lengths, strict=True)]
