"""A tiny LTX-Video: 4 blocks, 48 wide. 5 frames of 64 px are 3 x 8 x 8 latents, and as many tokens."""

from diffusers import FlowMatchEulerDiscreteScheduler, LTXPipeline, LTXVideoTransformer3DModel

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_t5
from foretune.models.tiny.tokenizers import build_t5_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS
from foretune.models.tiny.video_vae_ltx import build_ltx_vae

TEXT_DIM = 32
HEAD_DIM = 24
NUM_HEADS = 2


def build(variant: str) -> LTXPipeline:
    """Builds LTX-Video, whose schedule of sampling depends on the number of tokens."""
    assert variant in TINY_VARIANTS["ltx_video"]
    tokenizer = build_t5_tokenizer(model_max_length=128)
    return LTXPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            max_image_seq_len=4096,
            shift_terminal=0.1,
        ),
        vae=build_ltx_vae(),
        text_encoder=build_t5(tokenizer, dim=TEXT_DIM),
        tokenizer=tokenizer,
        transformer=LTXVideoTransformer3DModel(
            in_channels=NUM_LATENT_CHANNELS,
            out_channels=NUM_LATENT_CHANNELS,
            num_attention_heads=NUM_HEADS,
            attention_head_dim=HEAD_DIM,
            cross_attention_dim=NUM_HEADS * HEAD_DIM,
            num_layers=4,
            caption_channels=TEXT_DIM,
        ).eval(),
    )
