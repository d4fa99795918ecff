"""A tiny Wan 2.1: 4 blocks, 48 wide. 5 frames of 64 px are 2 x 8 x 8 latents and 2 x 4 x 4 tokens."""

from diffusers import UniPCMultistepScheduler, WanImageToVideoPipeline, WanPipeline, WanTransformer3DModel
from transformers import CLIPImageProcessorPil

from foretune.choices.tiny import TINY_VARIANTS
from foretune.models.tiny.text_encoders import build_clip_vision, build_umt5
from foretune.models.tiny.tokenizers import build_t5_tokenizer
from foretune.models.tiny.vae import NUM_LATENT_CHANNELS
from foretune.models.tiny.video_vae_wan import build_wan_vae

TEXT_DIM = 32
IMAGE_DIM = 24
HEAD_DIM = 24
NUM_HEADS = 2
# For each of the 4 frames of a latent, whether it is given.
NUM_MASK_CHANNELS = 4
# The image encoder sees 2 x 2 patches of the published size; with the token for the image, 5 tokens.
IMAGE_SIZE_PX = 28
PATCH_SIZE_PX = 14


def build(variant: str) -> WanPipeline | WanImageToVideoPipeline:
    """Builds Wan 2.1: `2.1-t2v` makes a clip from a caption, `2.1-i2v` from a caption and the first frame."""
    assert variant in TINY_VARIANTS["wan"]
    has_image = variant == "2.1-i2v"
    tokenizer = build_t5_tokenizer(model_max_length=512)
    text_encoder = build_umt5(tokenizer, dim=TEXT_DIM)
    transformer = _build_transformer(has_image=has_image)
    vae = build_wan_vae()
    scheduler = UniPCMultistepScheduler(
        num_train_timesteps=1000, prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    if not has_image:
        return WanPipeline(
            tokenizer=tokenizer, text_encoder=text_encoder, vae=vae, scheduler=scheduler, transformer=transformer
        )
    return WanImageToVideoPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        vae=vae,
        scheduler=scheduler,
        # The class for Pillow, because `CLIPImageProcessor` is another one if torchvision is installed.
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": IMAGE_SIZE_PX}, crop_size={"height": IMAGE_SIZE_PX, "width": IMAGE_SIZE_PX}
        ),
        image_encoder=build_clip_vision(dim=IMAGE_DIM, image_size_px=IMAGE_SIZE_PX, patch_size_px=PATCH_SIZE_PX),
        transformer=transformer,
    )


def _build_transformer(*, has_image: bool) -> WanTransformer3DModel:
    """Builds the denoiser; one that is given an image reads its latents, a mask, and the image encoder's tokens."""
    dim = HEAD_DIM * NUM_HEADS
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=NUM_HEADS,
        attention_head_dim=HEAD_DIM,
        in_channels=2 * NUM_LATENT_CHANNELS + NUM_MASK_CHANNELS if has_image else NUM_LATENT_CHANNELS,
        out_channels=NUM_LATENT_CHANNELS,
        text_dim=TEXT_DIM,
        freq_dim=64,
        ffn_dim=2 * dim,
        num_layers=4,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        image_dim=IMAGE_DIM if has_image else None,
        added_kv_proj_dim=dim if has_image else None,
    )
    return transformer.eval()
