"""The UNet of the DDPM paper's CIFAR-10 model, an eighth as wide: same blocks, same order, same schedule."""

from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

from foretune.choices.tiny import TINY_VARIANTS


def build(variant: str) -> DDPMPipeline:
    """Builds a pixel-space pipeline for images of 32 x 32 px; it takes no prompt."""
    assert variant in TINY_VARIANTS["ddpm"]
    unet = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        center_input_sample=False,
        time_embedding_type="positional",
        freq_shift=1,
        flip_sin_to_cos=False,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(16, 32, 32, 32),
        layers_per_block=2,
        downsample_padding=0,
        act_fn="silu",
        attention_head_dim=None,
        norm_num_groups=8,
        norm_eps=1e-6,
    )
    scheduler = DDPMScheduler(
        num_train_timesteps=1000,
        beta_start=1e-4,
        beta_end=0.02,
        beta_schedule="linear",
        variance_type="fixed_large",
        clip_sample=True,
        prediction_type="epsilon",
    )
    return DDPMPipeline(unet=unet.eval(), scheduler=scheduler)
