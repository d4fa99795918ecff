"""A tiny Stable Diffusion 3: 4 blocks, 48 wide. 64 px are 8 x 8 latents and 4 x 4 tokens."""

from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_clip, build_t5
from foretune.models.tiny.tokenizers import build_clip_tokenizer, build_t5_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS, build_vae

# The two CLIPs differ in width, and concatenated are narrower than the T5, as in the published model: code that mixes
# them up, or forgets to pad, fails on shapes.
CLIP_DIM = 24
CLIP_2_DIM = 32
T5_DIM = 64
HEAD_DIM = 24
NUM_HEADS = 2

SMALL = {"num_layers": 6, "attention_head_dim": 64, "num_attention_heads": 8, "caption_projection_dim": 512}
"""What makes the transformer 512 wide."""


def build(variant: str) -> StableDiffusion3Pipeline:
    """Builds Stable Diffusion 3: `3.5` has QK normalisation and two blocks with a second attention; `3` has neither."""
    assert variant in TINY_VARIANTS["sd3"]
    clip_tokenizer = build_clip_tokenizer()
    # The second CLIP is an OpenCLIP model, which pads with token 0.
    clip_2_tokenizer = build_clip_tokenizer(pad_token="!")
    t5_tokenizer = build_t5_tokenizer(model_max_length=512)
    return StableDiffusion3Pipeline(
        transformer=_build_transformer(variant),
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0),
        vae=build_vae(scaling_factor=1.5305, shift_factor=0.0609),
        text_encoder=build_clip(clip_tokenizer, dim=CLIP_DIM, projected=True),
        tokenizer=clip_tokenizer,
        text_encoder_2=build_clip(clip_2_tokenizer, dim=CLIP_2_DIM, projected=True, hidden_act="gelu"),
        tokenizer_2=clip_2_tokenizer,
        text_encoder_3=build_t5(t5_tokenizer, dim=T5_DIM),
        tokenizer_3=t5_tokenizer,
    )


def _build_transformer(variant: str) -> SD3Transformer2DModel:
    is_35 = variant == "3.5"
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=NUM_LATENT_CHANNELS,
        out_channels=NUM_LATENT_CHANNELS,
        num_layers=4,
        attention_head_dim=HEAD_DIM,
        num_attention_heads=NUM_HEADS,
        joint_attention_dim=T5_DIM,
        caption_projection_dim=HEAD_DIM * NUM_HEADS,
        pooled_projection_dim=CLIP_DIM + CLIP_2_DIM,
        pos_embed_max_size=24,  # images up to 384 px per side
        dual_attention_layers=(0, 1) if is_35 else (),
        qk_norm="rms_norm" if is_35 else None,
    )
    return transformer.eval()
