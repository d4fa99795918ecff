"""FLUX.1 dev and schnell: packed latents, CLIP and T5 captions, flow matching."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, Family, TensorSpec
from foretune.models.objectives import Objective


class Flux(Family):
    """Double-stream blocks, then single-stream blocks, over 2x2 patches of latents and text tokens."""

    name = "flux"
    denoiser_class_name = "FluxTransformer2DModel"
    pipeline_class_name = "FluxPipeline"
    denoiser_part = "transformer"
    text_parts = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    adapter_targets = ("to_q", "to_k", "to_v", "to_out.0")
    default_text_tokens = 512

    @property
    def has_guidance(self) -> bool:
        """dev is told a guidance scale; schnell is not."""
        return bool(self.architecture.denoiser.get("guidance_embeds", False))

    def blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        return (*denoiser.transformer_blocks, *denoiser.single_transformer_blocks)

    def size_multiple_px(self) -> int:
        return self._vae_factor() * 2

    def default_resolution_px(self) -> int:
        return 1024

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, config["joint_attention_dim"])),
            "pooled_embeds": TensorSpec((batch_size, config["pooled_projection_dim"])),
        }

    def objective(self, choice: ObjectiveChoice) -> Objective:
        # The reference training draws levels evenly; a checkpoint with a static shift moves them, one whose shift
        # depends on the image size (dev) does not.
        dynamic = bool((self.architecture.scheduler or {}).get("use_dynamic_shifting", False))
        own_shift = 1.0 if dynamic else self._scheduler_value("shift", 1.0)
        return self._flow_matching(choice, "uniform", own_shift)

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        batch, channels, height, width = noisy.shape
        prompt = conditioning["prompt_embeds"]
        tokens = noisy.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
        tokens = tokens.reshape(batch, (height // 2) * (width // 2), channels * 4)
        guidance = torch.full((batch,), guidance_scale, device=noisy.device) if self.has_guidance else None
        predicted = denoiser(
            hidden_states=tokens,
            timestep=time / 1000,
            guidance=guidance,
            pooled_projections=conditioning["pooled_embeds"],
            encoder_hidden_states=prompt,
            txt_ids=torch.zeros(prompt.shape[1], 3, device=noisy.device, dtype=noisy.dtype),
            img_ids=_image_positions(height // 2, width // 2, noisy),
            return_dict=False,
        )[0]
        patches = predicted.view(batch, height // 2, width // 2, channels, 2, 2).permute(0, 3, 1, 4, 2, 5)
        out: Tensor = patches.reshape(batch, channels, height, width)
        return out

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, pooled, _ = encoders.encode_prompt(
            prompt=list(captions), prompt_2=None, max_sequence_length=num_text_tokens
        )
        return {"prompt_embeds": prompt, "pooled_embeds": pooled}

    def pipeline_text(self, conditioning: Conditioning, unconditional: Conditioning) -> dict[str, Tensor]:
        return {
            "prompt_embeds": conditioning["prompt_embeds"],
            "pooled_prompt_embeds": conditioning["pooled_embeds"],
        }


def _image_positions(height: int, width: int, like: Tensor) -> Tensor:
    """(0, row, column) of each patch, row by row."""
    rows = torch.arange(height, device=like.device, dtype=like.dtype)[:, None].expand(height, width)
    columns = torch.arange(width, device=like.device, dtype=like.dtype)[None, :].expand(height, width)
    return torch.stack((torch.zeros_like(rows), rows, columns), dim=-1).reshape(height * width, 3)
