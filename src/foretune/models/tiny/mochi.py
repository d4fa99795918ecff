"""A tiny Mochi 1: 4 blocks, 48 wide. 7 frames of 64 px are 2 x 8 x 8 latents and 2 x 4 x 4 tokens."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, MochiPipeline, MochiTransformer3DModel

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_t5
from foretune.models.tiny.tokenizers import build_t5_tokenizer
from foretune.models.tiny.video_vae_mochi import NUM_LATENT_CHANNELS, build_mochi_vae

TEXT_DIM = 32
HEAD_DIM = 24
NUM_HEADS = 2
MAX_TEXT_TOKENS = 256


def build(variant: str) -> MochiPipeline:
    """Builds Mochi 1, whose time runs from 0 for noise to 1000 for the clip."""
    assert variant in TINY_VARIANTS["mochi"]
    tokenizer = build_t5_tokenizer(model_max_length=MAX_TEXT_TOKENS)
    return MochiPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=1.0, invert_sigmas=True),
        vae=build_mochi_vae(),
        text_encoder=build_t5(tokenizer, dim=TEXT_DIM),
        tokenizer=tokenizer,
        transformer=_build_transformer(),
    )


def _build_transformer() -> MochiTransformer3DModel:
    transformer = MochiTransformer3DModel(
        patch_size=2,
        num_attention_heads=NUM_HEADS,
        attention_head_dim=HEAD_DIM,
        num_layers=4,
        # The width of the text's stream, half of the other's as in the published model.
        pooled_projection_dim=HEAD_DIM * NUM_HEADS // 2,
        in_channels=NUM_LATENT_CHANNELS,
        qk_norm="rms_norm",
        text_embed_dim=TEXT_DIM,
        time_embed_dim=64,
        activation_fn="swiglu",
        max_sequence_length=MAX_TEXT_TOKENS,
    )
    with torch.no_grad():
        # Radians per frame and per unit of a frame that is 192 high and wide; diffusers leaves them at zero, for a
        # checkpoint to set, and without them the model sees no positions.
        deviation = torch.tensor([1.0, 0.03, 0.03]).view(3, 1, 1)
        transformer.pos_frequencies.normal_().mul_(deviation)
    return transformer.eval()
