"""A tiny FLUX.1: 2 double and 4 single blocks, 48 wide. 64 px are 8 x 8 latents and 4 x 4 tokens."""

from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_clip, build_t5
from foretune.models.tiny.tokenizers import build_clip_tokenizer, build_t5_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS, build_vae

CLIP_DIM = 32
T5_DIM = 32
# As published: dev reads 512 T5 tokens, schnell 256.
NUM_T5_TOKENS = {"dev": 512, "schnell": 256}

SMALL = {
    "num_layers": 2,
    "num_single_layers": 4,
    "attention_head_dim": 64,
    "num_attention_heads": 8,
    "axes_dims_rope": (16, 24, 24),
}
"""What makes the transformer 512 wide."""


def build(variant: str) -> FluxPipeline:
    """Builds FLUX.1: `dev` embeds the guidance and shifts its schedule by image size; `schnell` does neither."""
    assert variant in TINY_VARIANTS["flux"]
    clip_tokenizer = build_clip_tokenizer()
    t5_tokenizer = build_t5_tokenizer(model_max_length=NUM_T5_TOKENS[variant])
    return FluxPipeline(
        scheduler=_build_scheduler(variant),
        vae=build_vae(scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=build_clip(clip_tokenizer, dim=CLIP_DIM, projected=False),
        tokenizer=clip_tokenizer,
        text_encoder_2=build_t5(t5_tokenizer, dim=T5_DIM),
        tokenizer_2=t5_tokenizer,
        transformer=_build_transformer(variant),
    )


def _build_transformer(variant: str) -> FluxTransformer2DModel:
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * NUM_LATENT_CHANNELS,  # the pipeline packs 2 x 2 latents into a token
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=24,
        num_attention_heads=2,
        joint_attention_dim=T5_DIM,
        pooled_projection_dim=CLIP_DIM,
        guidance_embeds=variant == "dev",
        axes_dims_rope=(8, 8, 8),
    )
    return transformer.eval()


def _build_scheduler(variant: str) -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000,
        shift=3.0 if variant == "dev" else 1.0,
        use_dynamic_shifting=variant == "dev",
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=256,
        max_image_seq_len=4096,
    )
