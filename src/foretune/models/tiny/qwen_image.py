"""A tiny Qwen-Image: 4 blocks, 48 wide. 64 px are 8 x 8 latents and 4 x 4 tokens."""

from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_qwen2_5_vl
from foretune.models.tiny.tokenizers import build_qwen_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS
from foretune.models.tiny.video_vae_wan import build_wan_vae

TEXT_DIM = 32
# The words of the instruction that the pipeline writes before each caption, one token each: it cuts off 34 tokens.
INSTRUCTION = (
    "Describe the image by detailing color shape size texture quantity text spatial relationships of objects and "
    "background"
)


def build(variant: str) -> QwenImagePipeline:
    """Builds Qwen-Image, which guides by a second pass and whose VAE takes images as clips of one frame."""
    assert variant in TINY_VARIANTS["qwen_image"]
    tokenizer = build_qwen_tokenizer(further_words=tuple(INSTRUCTION.split()))
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * NUM_LATENT_CHANNELS,  # the pipeline packs 2 x 2 latents into a token
        out_channels=NUM_LATENT_CHANNELS,
        num_layers=4,
        attention_head_dim=24,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        axes_dims_rope=(8, 8, 8),
    )
    scheduler = FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000,
        shift=1.0,
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
    )
    return QwenImagePipeline(
        scheduler=scheduler,
        vae=build_wan_vae(AutoencoderKLQwenImage),
        text_encoder=build_qwen2_5_vl(tokenizer, dim=TEXT_DIM),
        tokenizer=tokenizer,
        transformer=transformer.eval(),
    )
