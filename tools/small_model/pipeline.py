"""The small model before its denoiser has learnt anything: a FLUX.1-dev in small, over a trained autoencoder."""

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from foretune.models.tiny.text_encoders import build_clip, build_t5
from foretune.models.tiny.tokenizers import build_clip_tokenizer, build_t5_tokenizer

# A caption has six words and an end.
NUM_TEXT_TOKENS = 8
_TEXT_DIM = 64
# A random T5 hardly looks where a word stands, and FLUX gives words no places of its own; then "red on blue" reads as
# "blue on red". With its relative positions weighted this much it looks at certain neighbours.
_POSITION_FACTOR = 16.0
_SHIFT = 1.0


def build_pipeline(vae: AutoencoderKL, seed: int) -> FluxPipeline:
    """All parts but the autoencoder are random; the text encoders stay so, as hashes which a denoiser can read."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        clip_tokenizer = build_clip_tokenizer()
        t5_tokenizer = build_t5_tokenizer(model_max_length=NUM_TEXT_TOKENS)
        clip = build_clip(clip_tokenizer, dim=_TEXT_DIM, projected=False)
        t5 = build_t5(t5_tokenizer, dim=_TEXT_DIM)
        with torch.no_grad():
            for name, weight in t5.named_parameters():
                if "relative_attention_bias" in name:
                    weight.mul_(_POSITION_FACTOR)
        transformer = _build_transformer(int(vae.config["latent_channels"]))
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=_SHIFT)
    return FluxPipeline(
        scheduler=scheduler,
        vae=vae,
        text_encoder=clip,
        tokenizer=clip_tokenizer,
        text_encoder_2=t5,
        tokenizer_2=t5_tokenizer,
        transformer=transformer,
    )


def _build_transformer(num_latent_channels: int) -> FluxTransformer2DModel:
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * num_latent_channels,  # the pipeline packs 2 x 2 latents into a token
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=24,
        num_attention_heads=4,
        joint_attention_dim=_TEXT_DIM,
        pooled_projection_dim=_TEXT_DIM,
        guidance_embeds=True,
        axes_dims_rope=(8, 8, 8),
    )
    return transformer.eval()
