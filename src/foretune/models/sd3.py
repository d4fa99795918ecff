"""Stable Diffusion 3 and 3.5: two CLIPs and a T5, flow matching with a logit-normal density."""

from collections.abc import Sequence
from typing import Any, Self

from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, RepeatedBlocks, TensorSpec
from foretune.models.objectives import Objective
from foretune.models.trainable import TrainableFamily

_CLIP_TOKENS = 77


class StableDiffusion3(TrainableFamily):
    """Joint text and image blocks over patches of latents."""

    facts = family_facts("sd3")
    denoiser_class_name = "SD3Transformer2DModel"
    text_parts = (
        "text_encoder",
        "tokenizer",
        "text_encoder_2",
        "tokenizer_2",
        "text_encoder_3",
        "tokenizer_3",
    )
    adapter_targets = ("to_q", "to_k", "to_v", "to_out.0")
    default_text_tokens = 256

    def blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        return tuple(denoiser.transformer_blocks)

    def block_kinds(self) -> tuple[RepeatedBlocks, ...]:
        """Splits the blocks of 3.5 medium: the first ones have a second attention, over the image only."""
        num_dual, num_layers = self._num_dual_layers(), int(self.architecture.denoiser["num_layers"])
        kinds = (
            RepeatedBlocks("dual_attention", num_dual),
            RepeatedBlocks("transformer_blocks", num_layers - num_dual),
        )
        return tuple(kind for kind in kinds if kind.count)

    def with_depths(self, depths: tuple[int, ...]) -> Self:
        assert len(depths) == len(self.block_kinds())
        num_dual = depths[0] if self._num_dual_layers() else 0
        return self._with_config({"num_layers": sum(depths), "dual_attention_layers": list(range(num_dual))})

    def size_multiple_px(self) -> int:
        return self._vae_factor() * int(self.architecture.denoiser.get("patch_size", 2))

    def default_resolution_px(self) -> int:
        return int(self.architecture.denoiser.get("sample_size", 128)) * self._vae_factor()

    def max_resolution_px(self) -> int | None:
        positions = self.architecture.denoiser.get("pos_embed_max_size")
        return int(positions) * self.size_multiple_px() if positions else None

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        num_tokens = _CLIP_TOKENS + num_text_tokens
        return {
            "prompt_embeds": TensorSpec((batch_size, num_tokens, config["joint_attention_dim"])),
            "pooled_embeds": TensorSpec((batch_size, config["pooled_projection_dim"])),
        }

    def objective(self, choice: ObjectiveChoice) -> Objective:
        return self._flow_matching(choice, "logit_normal", self._scheduler_value("shift", 3.0))

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
            timestep=time,
            encoder_hidden_states=conditioning["prompt_embeds"],
            pooled_projections=conditioning["pooled_embeds"],
            return_dict=False,
        )[0]
        return predicted

    def _num_dual_layers(self) -> int:
        layers = list(self.architecture.denoiser.get("dual_attention_layers") or ())
        assert layers == list(range(len(layers))), "the blocks that attend twice are the first ones"
        return len(layers)

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, _, pooled, _ = encoders.encode_prompt(
            prompt=list(captions),
            prompt_2=None,
            prompt_3=None,
            do_classifier_free_guidance=False,
            max_sequence_length=num_text_tokens,
        )
        return {"prompt_embeds": prompt, "pooled_embeds": pooled}
