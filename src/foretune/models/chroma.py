"""Chroma: FLUX.1 without guidance embedding and pooled caption; one small network computes all blocks' modulation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.objectives import Objective
from foretune.models.packing import grid_positions, pack_patches, unpack_patches
from foretune.models.trainable import TrainableFamily
from foretune.models.transformer import LatentTransformer


class Chroma(LatentTransformer, TrainableFamily):
    """Double-stream blocks, then single-stream blocks; padded text is masked."""

    facts = family_facts("chroma")
    denoiser_class_name = "ChromaTransformer2DModel"
    text_parts = ("text_encoder", "tokenizer")
    default_text_tokens = 512
    most_text_tokens = 512
    stacks = (("transformer_blocks", "num_layers"), ("single_transformer_blocks", "num_single_layers"))

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        width = self.architecture.denoiser["joint_attention_dim"]
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, width)),
            "prompt_mask": TensorSpec((batch_size, num_text_tokens), torch.bool),
        }

    def objective(self, choice: ObjectiveChoice) -> Objective:
        # As kohya-ss/sd-scripts recommends for Chroma (docs/flux_train_network.md at 063ef10): sigmoid, no shift.
        return self._flow_matching(choice, "logit_normal", 1.0)

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
        prompt, mask = conditioning["prompt_embeds"], conditioning["prompt_mask"]
        tokens = pack_patches(noisy)
        predicted = denoiser(
            hidden_states=tokens,
            encoder_hidden_states=prompt,
            timestep=time / 1000,
            txt_ids=torch.zeros(prompt.shape[1], 3, device=noisy.device, dtype=noisy.dtype),
            img_ids=grid_positions(height // 2, width // 2, noisy),
            attention_mask=torch.cat([mask, mask.new_ones(tokens.shape[:2])], dim=1),
            return_dict=False,
        )[0]
        return unpack_patches(predicted, noisy.shape)

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, _, mask, *_ = encoders.encode_prompt(
            prompt=list(captions), do_classifier_free_guidance=False, max_sequence_length=num_text_tokens
        )
        return {"prompt_embeds": prompt, "prompt_mask": mask.bool()}

    def pipeline_text(self, conditioning: Conditioning, unconditional: Conditioning) -> dict[str, Any]:
        # As the pipeline would make them of captions: numbers, which attention adds to its scores, so that they hardly
        # mask anything (huggingface/diffusers#12116). Samples show what users of the pipeline get.
        text = super().pipeline_text(conditioning, unconditional)
        return {name: value.to(conditioning["prompt_embeds"]) for name, value in text.items()}

    def _patch_size(self) -> int:
        return 2  # the denoiser's patch size counts tokens that are already packed
