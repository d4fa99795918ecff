"""A tiny PixArt-Sigma: 4 blocks, 48 wide. 256 px are 32 x 32 latents and 16 x 16 tokens."""

from diffusers import DPMSolverMultistepScheduler, PixArtSigmaPipeline, PixArtTransformer2DModel

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_t5
from foretune.models.tiny.tokenizers import build_t5_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS, build_vae

T5_DIM = 32
HEAD_DIM = 24
NUM_HEADS = 2


def build(variant: str) -> PixArtSigmaPipeline:
    """Builds PixArt-Sigma, which also predicts the variance of the noise."""
    assert variant in TINY_VARIANTS["pixart"]
    tokenizer = build_t5_tokenizer(model_max_length=300)
    transformer = PixArtTransformer2DModel(
        sample_size=32,  # the smallest that its pipeline takes
        patch_size=2,
        in_channels=NUM_LATENT_CHANNELS,
        out_channels=2 * NUM_LATENT_CHANNELS,
        num_layers=4,
        attention_head_dim=HEAD_DIM,
        num_attention_heads=NUM_HEADS,
        cross_attention_dim=HEAD_DIM * NUM_HEADS,
        caption_channels=T5_DIM,
        norm_eps=1e-6,
    )
    return PixArtSigmaPipeline(
        tokenizer=tokenizer,
        text_encoder=build_t5(tokenizer, dim=T5_DIM),
        vae=build_vae(scaling_factor=0.13025, shift_factor=0.0),
        transformer=transformer.eval(),
        scheduler=DPMSolverMultistepScheduler(beta_start=1e-4, beta_end=0.02, beta_schedule="linear"),
    )
