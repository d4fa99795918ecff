"""A tiny Chroma: 2 double and 4 single blocks, 48 wide. 64 px are 8 x 8 latents and 4 x 4 tokens."""

from diffusers import ChromaPipeline, ChromaTransformer2DModel, FlowMatchEulerDiscreteScheduler

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_t5
from foretune.models.tiny.tokenizers import build_t5_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS, build_vae

TEXT_DIM = 32
MAX_TEXT_TOKENS = 512


def build(variant: str) -> ChromaPipeline:
    """Builds Chroma, which masks the padding of captions but for one token."""
    assert variant in TINY_VARIANTS["chroma"]
    tokenizer = build_t5_tokenizer(model_max_length=MAX_TEXT_TOKENS)
    transformer = ChromaTransformer2DModel(
        patch_size=1,
        in_channels=4 * NUM_LATENT_CHANNELS,  # the pipeline packs 2 x 2 latents into a token
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=24,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        axes_dims_rope=(8, 8, 8),
        approximator_num_channels=16,
        approximator_hidden_dim=32,
        approximator_layers=2,
    )
    return ChromaPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, use_beta_sigmas=True),
        vae=build_vae(scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=build_t5(tokenizer, dim=TEXT_DIM),
        tokenizer=tokenizer,
        transformer=transformer.eval(),
    )
