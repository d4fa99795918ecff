"""HunyuanVideo: double-stream blocks, then single-stream blocks, with a language model's text and a pooled caption."""

import torch
from torch import Tensor, nn

from foretune.catalog import family_facts
from foretune.models.family import Conditioning, TensorSpec
from foretune.models.video import VideoTransformer


class HunyuanVideo(VideoTransformer):
    """Two refiner blocks process the text first."""

    facts = family_facts("hunyuan_video")
    denoiser_class_name = "HunyuanVideoTransformer3DModel"
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
