"""HunyuanVideo: double-stream blocks, then single-stream blocks, with a language model's text and a pooled caption."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.objectives import Objective
from foretune.models.trainable import TrainableFamily
from foretune.models.video import VideoTransformer


class HunyuanVideo(VideoTransformer, TrainableFamily):
    """Two refiner blocks process the text first."""

    facts = family_facts("hunyuan_video")
    denoiser_class_name = "HunyuanVideoTransformer3DModel"
    autoencoder_class_name = "AutoencoderKLHunyuanVideo"
    text_parts = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    default_text_tokens = 256
    stacks = (("transformer_blocks", "num_layers"), ("single_transformer_blocks", "num_single_layers"))
    usual_size_px = (720, 1280)
    usual_num_frames = 129

    def conditioning_specs(self, batch_size: int, num_text_tokens: int) -> dict[str, TensorSpec]:
        config = self.architecture.denoiser
        return {
            "prompt_embeds": TensorSpec((batch_size, num_text_tokens, config["text_embed_dim"])),
            "prompt_mask": TensorSpec((batch_size, num_text_tokens), torch.bool),
            "pooled_embeds": TensorSpec((batch_size, config["pooled_projection_dim"])),
        }

    def load_pipeline(self, folder: Path, dtype: torch.dtype, **parts: Any) -> Any:
        if "tokenizer" not in parts:
            # Its index names a class that puts Llama 2's spaces in the place of what the file says.
            from transformers import AutoTokenizer

            parts["tokenizer"] = AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
        return super().load_pipeline(folder, dtype, **parts)

    def objective(self, choice: ObjectiveChoice) -> Objective:
        # As musubi-tuner recommends: a sigmoid of normal numbers, shifted as in sampling.
        return self._flow_matching(choice, "logit_normal", self._scheduler_value("shift", 7.0))

    def encode_text(self, encoders: Any, captions: Sequence[str], num_text_tokens: int) -> Conditioning:
        prompt, pooled, mask = encoders.encode_prompt(prompt=list(captions), max_sequence_length=num_text_tokens)
        return {"prompt_embeds": prompt, "prompt_mask": mask.bool(), "pooled_embeds": pooled}

    def pipeline_text(self, conditioning: Conditioning, unconditional: Conditioning) -> dict[str, Any]:
        """Returns the caption alone: the guidance is embedded, so there is no pass without a caption."""
        return {
            "prompt_embeds": conditioning["prompt_embeds"],
            "prompt_attention_mask": conditioning["prompt_mask"],
            "pooled_prompt_embeds": conditioning["pooled_embeds"],
        }

    def _vae_factor(self) -> int:
        return int(self._vae.get("spatial_compression_ratio", 8))

    def frames_per_latent(self) -> int:
        return int(self._vae.get("temporal_compression_ratio", 4))

    def predict(
        self,
        denoiser: nn.Module,
        noisy: Tensor,
        time: Tensor,
        conditioning: Conditioning,
        *,
        guidance_scale: float,
    ) -> Tensor:
        guidance = None
        if self.architecture.denoiser.get("guidance_embeds", False):
            guidance = torch.full((len(noisy),), guidance_scale * 1000, device=noisy.device)
        predicted: Tensor = denoiser(
            hidden_states=noisy,
            timestep=time,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_attention_mask=conditioning["prompt_mask"],
            pooled_projections=conditioning["pooled_embeds"],
            guidance=guidance,
            return_dict=False,
        )[0]
        return predicted
