"""A tiny VAE of Wan 2.1, and of Qwen-Image, whose VAE is built alike: 8 px and 4 frames per latent, the first alone.

Its norms divide each pixel's channels by their root mean square.
"""

from math import sqrt
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import (
    QwenImageAttentionBlock,
    QwenImageResample,
    QwenImageResidualBlock,
)
from diffusers.models.autoencoders.autoencoder_kl_wan import WanAttentionBlock, WanResample, WanResidualBlock

from foretune.models.tiny.vae import COLOUR_DEVIATION, LOG_VARIANCE, NUM_LATENT_CHANNELS
from foretune.models.tiny.video_vae import NUM_COLOURS, add_map, mean_taps, set_map, shrink, signals_of_colours

# The first four of the published VAE's, far enough from 0 and 1 to show code that forgets them.
LATENTS_MEAN = (-0.7571, -0.7089, -0.9113, 0.1075)
LATENTS_STD = (2.8184, 1.4541, 2.3275, 2.6558)

# Half as many channels at full resolution, in the last level of the decoder, and between its other levels.
NUM_CHANNELS = 16
NUM_NARROW_CHANNELS = 8
# Each signal is followed by its negative, except that 8 channels have no room for the brightness's.
SIGNAL_CHANNELS = (0, 2, 4, 7)
CONSTANT_CHANNEL = 6
CONSTANT = 16.0


def build_wan_vae(vae_class: Any = AutoencoderKLWan) -> Any:
    """Builds a VAE with 4 latent channels; normalised by its mean and deviation, latents have a deviation near 1."""
    vae = vae_class(
        base_dim=NUM_NARROW_CHANNELS,
        z_dim=NUM_LATENT_CHANNELS,
        dim_mult=[1, 2, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=list(LATENTS_MEAN),
        latents_std=list(LATENTS_STD),
    )
    with torch.no_grad():
        _wire_blocks(vae)
        _wire_ends(vae)
    return vae.eval()


def _wire_blocks(vae: Any) -> None:
    """Passes the skip path unchanged from level to level, and scales down what is added to it."""
    widen = torch.eye(NUM_CHANNELS, NUM_NARROW_CHANNELS)
    widen[SIGNAL_CHANNELS[-1] + 1, SIGNAL_CHANNELS[-1]] = -1.0
    for module in vae.modules():
        if isinstance(module, WanAttentionBlock | QwenImageAttentionBlock):
            shrink(module.proj)
        elif isinstance(module, WanResidualBlock | QwenImageResidualBlock):
            shrink(module.conv2)
            if module.in_dim != module.out_dim:
                set_map(module.conv_shortcut, widen, torch.ones(1, 1, 1))
        elif isinstance(module, WanResample | QwenImageResample):
            _wire_resampling(module)


def _wire_resampling(module: WanResample | QwenImageResample) -> None:
    """Halves by means, and doubles by copies."""
    conv = module.resample[1]
    taps = mean_taps(conv, slice(2), slice(2)) if module.mode.startswith("down") else mean_taps(conv, 1, 1)
    set_map(conv, torch.eye(conv.out_channels, conv.in_channels), taps)
    identity = torch.eye(conv.in_channels)
    if module.mode == "downsample3d":
        set_map(module.time_conv, identity, mean_taps(module.time_conv, slice(1, None)))
    elif module.mode == "upsample3d":
        # The two halves of its output are the two frames that it makes of one.
        set_map(module.time_conv, torch.cat([identity, identity]), mean_taps(module.time_conv, -1))


def _wire_ends(vae: Any) -> None:
    """Writes the signals to their channels where encoder and decoder begin, and reads them where these end."""
    spread = torch.zeros(NUM_CHANNELS, NUM_LATENT_CHANNELS)
    for signal, channel in enumerate(SIGNAL_CHANNELS):
        spread[channel, signal] = 1.0
        spread[channel + 1, signal] = -1.0
    mean = torch.tensor(LATENTS_MEAN)
    latents_per_signal = torch.tensor(LATENTS_STD) / COLOUR_DEVIATION
    encoder, decoder = vae.encoder, vae.decoder
    now = mean_taps(encoder.conv_in, -1, 1, 1)

    bias = set_map(encoder.conv_in, spread[:NUM_NARROW_CHANNELS] @ signals_of_colours(), now)
    bias[CONSTANT_CHANNEL] = CONSTANT
    bias = shrink(encoder.conv_out)
    add_map(encoder.conv_out, latents_per_signal[:, None] * _norm_scale(NUM_CHANNELS) * spread.T, now)
    bias[:NUM_LATENT_CHANNELS] = mean
    bias[NUM_LATENT_CHANNELS:] = LOG_VARIANCE
    for conv in (vae.quant_conv, vae.post_quant_conv):
        set_map(conv, torch.eye(conv.in_channels), torch.ones(1, 1, 1))

    bias = set_map(decoder.conv_in, spread / latents_per_signal, now)
    bias.copy_(-spread @ (mean / latents_per_signal))
    bias[CONSTANT_CHANNEL] = CONSTANT
    shrink(decoder.conv_out)
    colours = spread[:NUM_NARROW_CHANNELS, :NUM_COLOURS]
    add_map(decoder.conv_out, _norm_scale(NUM_NARROW_CHANNELS) * colours.T, now)


def _norm_scale(num_channels: int) -> float:
    """Returns what a norm divides by: the root mean square of channels of which the constant is by far the largest."""
    return CONSTANT / sqrt(num_channels)
