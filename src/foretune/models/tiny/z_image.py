"""A tiny Z-Image: 4 blocks after 2 refiners, 48 wide. 64 px are 8 x 8 latents and 4 x 4 tokens, filled up to 32."""

from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_qwen3
from foretune.models.tiny.tokenizers import build_qwen_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS, build_vae

TEXT_DIM = 32


def build(variant: str) -> ZImagePipeline:
    """Builds Z-Image, whose time runs from 0 for noise to 1 for the image."""
    assert variant in TINY_VARIANTS["z_image"]
    tokenizer = build_qwen_tokenizer()
    transformer = ZImageTransformer2DModel(
        in_channels=NUM_LATENT_CHANNELS,
        dim=48,
        n_layers=4,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=TEXT_DIM,
        axes_dims=[8, 8, 8],
        axes_lens=[1024, 64, 64],
    )
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0),
        vae=build_vae(scaling_factor=0.3611, shift_factor=0.1159),
        # The pipeline reads what the last layer but one gives.
        text_encoder=build_qwen3(tokenizer, dim=TEXT_DIM, num_skipped_layers=1),
        tokenizer=tokenizer,
        transformer=transformer.eval(),
    )
