"""A tiny HunyuanVideo: 2 double and 2 single blocks, 48 wide. 5 frames of 64 px are 2 x 8 x 8 latents."""

import re

from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoPipeline, HunyuanVideoTransformer3DModel
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_clip, build_llama
from foretune.models.tiny.tokenizers import build_clip_tokenizer, build_llama_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS
from foretune.models.tiny.video_vae_hunyuan import build_hunyuan_vae

TEXT_DIM = 32
CLIP_DIM = 24


def build(variant: str) -> HunyuanVideoPipeline:
    """Builds HunyuanVideo, which reads its guidance scale instead of running a second pass."""
    assert variant in TINY_VARIANTS["hunyuan_video"]
    # The pipeline writes an instruction before each caption and cuts the first 95 tokens off. With a token for each of
    # its words, as Llama 3 has, these are the instruction's.
    instruction = re.sub(r"<\|\w+\|>", " ", DEFAULT_PROMPT_TEMPLATE["template"])
    tokenizer = build_llama_tokenizer(further_words=tuple(re.findall(r"[A-Za-z]+", instruction)))
    tokenizer_2 = build_clip_tokenizer()
    transformer = HunyuanVideoTransformer3DModel(
        in_channels=NUM_LATENT_CHANNELS,
        out_channels=NUM_LATENT_CHANNELS,
        num_attention_heads=2,
        attention_head_dim=24,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        patch_size=2,
        patch_size_t=1,
        qk_norm="rms_norm",
        guidance_embeds=True,
        text_embed_dim=TEXT_DIM,
        pooled_projection_dim=CLIP_DIM,
        rope_theta=256.0,
        rope_axes_dim=(8, 8, 8),
    )
    return HunyuanVideoPipeline(
        # The pipeline takes the states before the last two layers.
        text_encoder=build_llama(tokenizer, dim=TEXT_DIM, num_skipped_layers=2),
        tokenizer=tokenizer,
        transformer=transformer.eval(),
        vae=build_hunyuan_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=7.0),
        text_encoder_2=build_clip(tokenizer_2, dim=CLIP_DIM, projected=False),
        tokenizer_2=tokenizer_2,
    )
