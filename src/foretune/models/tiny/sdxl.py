"""A tiny Stable Diffusion XL: two levels of resolution, 16 and 32 wide. 64 px are 8 x 8 latents."""

from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_clip
from foretune.models.tiny.tokenizers import build_clip_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS, build_vae

# The two CLIPs differ in width; the second one also gives the pooled caption.
CLIP_DIM = 24
CLIP_2_DIM = 32
SIZE_DIM = 8
NUM_SIZES = 6


def build(variant: str) -> StableDiffusionXLPipeline:
    """Builds Stable Diffusion XL: no attention at the highest resolution, two transformer blocks at the lowest."""
    assert variant in TINY_VARIANTS["sdxl"]
    tokenizer, tokenizer_2 = build_clip_tokenizer(), build_clip_tokenizer(pad_token="!")
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=NUM_LATENT_CHANNELS,
        out_channels=NUM_LATENT_CHANNELS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        # In spite of its name, the number of heads.
        attention_head_dim=(1, 2),
        transformer_layers_per_block=(1, 2),
        cross_attention_dim=CLIP_DIM + CLIP_2_DIM,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=SIZE_DIM,
        projection_class_embeddings_input_dim=CLIP_2_DIM + NUM_SIZES * SIZE_DIM,
    )
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        num_train_timesteps=1000,
        steps_offset=1,
        timestep_spacing="leading",
    )
    return StableDiffusionXLPipeline(
        vae=build_vae(scaling_factor=0.13025, shift_factor=0.0),
        text_encoder=build_clip(tokenizer, dim=CLIP_DIM, projected=False),
        text_encoder_2=build_clip(tokenizer_2, dim=CLIP_2_DIM, projected=True, hidden_act="gelu"),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer_2,
        unet=unet.eval(),
        scheduler=scheduler,
        force_zeros_for_empty_prompt=True,
        add_watermarker=False,
    )
