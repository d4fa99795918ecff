"""A tiny VAE of HunyuanVideo: 8 px and 4 frames per latent, the first frame alone.

Its norms are GroupNorms over all frames, with one group for each signal. As in `vae`, a signal has four channels: the
signal, its negative, a constant and the constant's negative.
"""

import torch
from diffusers import AutoencoderKLHunyuanVideo
from diffusers.models.attention_processor import Attention
from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import (
    HunyuanVideoDownsampleCausal3D,
    HunyuanVideoResnetBlockCausal3D,
    HunyuanVideoUpsampleCausal3D,
)

from foretune.models.tiny.vae import (
    CHANNELS_PER_SIGNAL,
    COLOUR_DEVIATION,
    CONSTANT,
    GROUP_NORM_SCALE,
    LOG_VARIANCE,
    NUM_LATENT_CHANNELS,
)
from foretune.models.tiny.video_vae import NUM_COLOURS, add_map, mean_taps, set_map, shrink, signals_of_colours

NUM_CHANNELS = CHANNELS_PER_SIGNAL * NUM_LATENT_CHANNELS
SCALING_FACTOR = 0.476986


def build_hunyuan_vae() -> AutoencoderKLHunyuanVideo:
    """Builds a VAE with 4 latent channels; multiplied by its scaling factor, latents have a deviation near 1."""
    vae = AutoencoderKLHunyuanVideo(
        latent_channels=NUM_LATENT_CHANNELS,
        block_out_channels=(NUM_CHANNELS,) * 4,
        layers_per_block=1,
        norm_num_groups=NUM_LATENT_CHANNELS,
        scaling_factor=SCALING_FACTOR,
        spatial_compression_ratio=8,
        temporal_compression_ratio=4,
    )
    with torch.no_grad():
        _wire_blocks(vae)
        _wire_ends(vae)
    return vae.eval()


def _wire_blocks(vae: AutoencoderKLHunyuanVideo) -> None:
    """Passes the skip path unchanged from level to level, and scales down what is added to it."""
    identity = torch.eye(NUM_CHANNELS)
    for module in vae.modules():
        if isinstance(module, HunyuanVideoResnetBlockCausal3D):
            shrink(module.conv2.conv)
        elif isinstance(module, Attention):
            shrink(module.to_out[0])
        elif isinstance(module, HunyuanVideoDownsampleCausal3D):
            conv = module.conv.conv
            # It is padded by two frames before the first, and by a pixel on all sides.
            frames, rows, columns = (slice(-stride, None) for stride in conv.stride)
            set_map(conv, identity, mean_taps(conv, frames, rows, columns))
        elif isinstance(module, HunyuanVideoUpsampleCausal3D):
            set_map(module.conv.conv, identity, mean_taps(module.conv.conv, -1, 1, 1))


def _wire_ends(vae: AutoencoderKLHunyuanVideo) -> None:
    """Writes the signals to their channels where encoder and decoder begin, and reads them where these end."""
    spread = torch.kron(torch.eye(NUM_LATENT_CHANNELS), torch.tensor([[1.0], [-1.0], [0.0], [0.0]]))
    constants = torch.tensor([0.0, 0.0, CONSTANT, -CONSTANT]).repeat(NUM_LATENT_CHANNELS)
    latents_per_signal = 1 / (SCALING_FACTOR * COLOUR_DEVIATION)
    encoder_in, encoder_out = vae.encoder.conv_in.conv, vae.encoder.conv_out.conv
    decoder_in, decoder_out = vae.decoder.conv_in.conv, vae.decoder.conv_out.conv
    now = mean_taps(encoder_in, -1, 1, 1)

    set_map(encoder_in, spread @ signals_of_colours(), now).copy_(constants)
    bias = shrink(encoder_out)
    add_map(encoder_out, latents_per_signal * GROUP_NORM_SCALE * spread.T, now)
    bias[NUM_LATENT_CHANNELS:] = LOG_VARIANCE
    for conv in (vae.quant_conv, vae.post_quant_conv):
        set_map(conv, torch.eye(conv.in_channels), torch.ones(1, 1, 1))

    set_map(decoder_in, spread / latents_per_signal, now).copy_(constants)
    shrink(decoder_out)
    add_map(decoder_out, GROUP_NORM_SCALE * spread.T[:NUM_COLOURS], now)
