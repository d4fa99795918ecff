"""A tiny Stable Diffusion 1 or 2: three levels of resolution, 16 to 32 wide. 64 px are 8 x 8 latents."""

from diffusers import DDIMScheduler, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_clip
from foretune.models.tiny.tokenizers import build_clip_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS, build_vae

CLIP_DIM = 32


def build(variant: str) -> StableDiffusionPipeline:
    """Builds Stable Diffusion: `1.5` predicts the noise; `2.1` predicts the velocity and has linear projections."""
    assert variant in TINY_VARIANTS["sd1"]
    is_2 = variant == "2.1"
    # The CLIP of version 2 is an OpenCLIP model, which pads with token 0.
    tokenizer = build_clip_tokenizer(pad_token="!") if is_2 else build_clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=NUM_LATENT_CHANNELS,
        out_channels=NUM_LATENT_CHANNELS,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(16, 16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        # In spite of its name, the number of heads.
        attention_head_dim=2,
        cross_attention_dim=CLIP_DIM,
        use_linear_projection=is_2,
    )
    return StableDiffusionPipeline(
        vae=build_vae(scaling_factor=0.18215, shift_factor=0.0),
        text_encoder=build_clip(tokenizer, dim=CLIP_DIM, projected=False, hidden_act="gelu" if is_2 else "quick_gelu"),
        tokenizer=tokenizer,
        unet=unet.eval(),
        scheduler=_build_scheduler(is_2=is_2),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _build_scheduler(*, is_2: bool) -> DDIMScheduler | PNDMScheduler:
    betas = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    common = {**betas, "num_train_timesteps": 1000, "set_alpha_to_one": False, "steps_offset": 1}
    if is_2:
        return DDIMScheduler(**common, clip_sample=False, prediction_type="v_prediction")
    return PNDMScheduler(**common, skip_prk_steps=True)
