"""A tiny Lumina-Image 2.0: 4 blocks after 2 refiners, 48 wide. 64 px are 8 x 8 latents and 4 x 4 tokens."""

from diffusers import FlowMatchEulerDiscreteScheduler, Lumina2Pipeline, Lumina2Transformer2DModel

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_gemma2
from foretune.models.tiny.tokenizers import build_gemma_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS, build_vae

TEXT_DIM = 32
# The words of the instruction that the pipeline writes before each caption, one token each.
INSTRUCTION = (
    "You are an assistant designed to generate superior images with degree image-text alignment based textual prompts "
    "or user prompts. <Prompt Start>"
)


def build(variant: str) -> Lumina2Pipeline:
    """Builds Lumina-Image 2.0, whose time runs from 0 for noise to 1 for the image."""
    assert variant in TINY_VARIANTS["lumina2"]
    tokenizer = build_gemma_tokenizer(further_words=tuple(INSTRUCTION.split()))
    transformer = Lumina2Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=NUM_LATENT_CHANNELS,
        hidden_size=48,
        num_layers=4,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(8, 8, 8),
        axes_lens=(300, 64, 64),
        cap_feat_dim=TEXT_DIM,
    )
    return Lumina2Pipeline(
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=6.0),
        vae=build_vae(scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=build_gemma2(tokenizer, dim=TEXT_DIM),
        tokenizer=tokenizer,
    )
