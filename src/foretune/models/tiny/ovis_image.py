"""A tiny Ovis-Image: 2 double and 4 single blocks, 48 wide. 64 px are 8 x 8 latents and 4 x 4 tokens."""

from diffusers import FlowMatchEulerDiscreteScheduler, OvisImagePipeline, OvisImageTransformer2DModel

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_qwen3
from foretune.models.tiny.tokenizers import build_qwen_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS, build_vae

TEXT_DIM = 32
# The words of the instruction that the pipeline writes before each caption, one token each. It cuts the first 28 tokens
# off; what more the instruction took, the caption would lose.
INSTRUCTION = (
    "Describe the image by detailing color quantity text shape size texture spatial relationships of objects and "
    "background"
)


def build(variant: str) -> OvisImagePipeline:
    """Builds Ovis-Image, which guides by a second pass and shifts its schedule by image size."""
    assert variant in TINY_VARIANTS["ovis_image"]
    tokenizer = build_qwen_tokenizer(further_words=tuple(INSTRUCTION.split()))
    transformer = OvisImageTransformer2DModel(
        patch_size=1,
        in_channels=4 * NUM_LATENT_CHANNELS,  # the pipeline packs 2 x 2 latents into a token
        out_channels=4 * NUM_LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=24,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        axes_dims_rope=(8, 8, 8),
    )
    scheduler = FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000,
        shift=3.0,
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=256,
        max_image_seq_len=4096,
    )
    return OvisImagePipeline(
        scheduler=scheduler,
        vae=build_vae(scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=build_qwen3(tokenizer, dim=TEXT_DIM),
        tokenizer=tokenizer,
        transformer=transformer.eval(),
    )
