"""A tiny VAE of LTX-Video: 8 px and 2 frames per latent, the first frame alone.

The published one compresses 32 times in space and 8 times in time, with two more levels.

Its norms divide by the root mean square over all channels. Besides each signal and its negative there are constants,
which dominate it.
"""

import torch
from diffusers import AutoencoderKLLTXVideo
from diffusers.models.autoencoders.autoencoder_kl_ltx import LTXVideoResnetBlock3d

from foretune.models.tiny.vae import COLOUR_DEVIATION, LOG_VARIANCE, NUM_LATENT_CHANNELS
from foretune.models.tiny.video_vae import (
    NUM_COLOURS,
    NUM_SIGNALS,
    add_map,
    mean_taps,
    set_map,
    shrink,
    signals_of_colours,
)

PATCH_PX = 4
PIXELS_PER_PATCH = PATCH_PX**2
NUM_CHANNELS = 4 * NUM_SIGNALS
NUM_CONSTANTS = NUM_CHANNELS - 2 * NUM_SIGNALS

CONSTANT = 4.0
# Root mean square over the channels if the signals are small next to the constants.
NORM_SCALE = CONSTANT * (NUM_CONSTANTS / NUM_CHANNELS) ** 0.5
# Mean and deviation of the latents, which training and sampling normalise by; as uneven as the published ones.
LATENTS_MEAN = (0.1, -0.2, 0.3, -0.1)
LATENTS_STD = (0.8, 1.2, 0.6, 1.5)


def build_ltx_vae() -> AutoencoderKLLTXVideo:
    """Builds a VAE with 4 latent channels; normalised by its mean and deviation, latents have a deviation near 1."""
    num_blocks = 2
    vae = AutoencoderKLLTXVideo(
        latent_channels=NUM_LATENT_CHANNELS,
        block_out_channels=(NUM_CHANNELS,) * num_blocks,
        decoder_block_out_channels=(NUM_CHANNELS,) * num_blocks,
        down_block_types=("LTXVideoDownBlock3D",) * num_blocks,
        layers_per_block=(1,) * (num_blocks + 1),
        decoder_layers_per_block=(1,) * (num_blocks + 1),
        spatio_temporal_scaling=(True, False),
        decoder_spatio_temporal_scaling=(True, False),
        decoder_inject_noise=(False,) * (num_blocks + 1),
        downsample_type=("conv",) * num_blocks,
        upsample_residual=(False,) * num_blocks,
        upsample_factor=(1,) * num_blocks,
        patch_size=PATCH_PX,
    )
    with torch.no_grad():
        vae.latents_mean.copy_(torch.tensor(LATENTS_MEAN))
        vae.latents_std.copy_(torch.tensor(LATENTS_STD))
        for module in vae.modules():
            if isinstance(module, LTXVideoResnetBlock3d):
                shrink(module.conv2.conv)
        _wire_encoder(vae)
        _wire_decoder(vae)
    return vae.eval()


def _wire_encoder(vae: AutoencoderKLLTXVideo) -> None:
    encoder = vae.encoder
    conv_in, conv_out = encoder.conv_in.conv, encoder.conv_out.conv
    now = mean_taps(conv_in, -1, 1, 1)
    # Inputs are ordered by colour, then by pixel of a patch.
    mean_of_patch = torch.full((1, PIXELS_PER_PATCH), 1 / PIXELS_PER_PATCH)
    bias = set_map(conv_in, torch.kron(_pairs().T @ signals_of_colours(), mean_of_patch), now)
    bias[2 * NUM_SIGNALS :] = CONSTANT

    conv = encoder.down_blocks[0].downsamplers[0].conv
    # It is padded by two frames before the first, and by a pixel on all sides.
    later = slice(-2, None)
    set_map(conv, torch.eye(NUM_CHANNELS), mean_taps(conv, later, later, later))

    bias = shrink(conv_out)
    per_signal = torch.diag(torch.tensor(LATENTS_STD) / COLOUR_DEVIATION)
    add_map(conv_out, NORM_SCALE * per_signal @ _pairs(), now)
    bias[:NUM_LATENT_CHANNELS] = torch.tensor(LATENTS_MEAN)
    # One for all channels.
    bias[NUM_LATENT_CHANNELS] = LOG_VARIANCE


def _wire_decoder(vae: AutoencoderKLLTXVideo) -> None:
    decoder = vae.decoder
    conv_in, conv_out = decoder.conv_in.conv, decoder.conv_out.conv
    # The decoder sees the frames before and after one.
    now = mean_taps(conv_in, 1, 1, 1)
    signals = _pairs().T @ torch.diag(COLOUR_DEVIATION / torch.tensor(LATENTS_STD))
    bias = set_map(conv_in, signals, now)
    bias[: 2 * NUM_SIGNALS] = -signals @ torch.tensor(LATENTS_MEAN)
    bias[2 * NUM_SIGNALS :] = CONSTANT

    # Outputs are ordered by channel, then by frame, row and column of what a latent is expanded to.
    conv = next(block for block in decoder.up_blocks if block.upsamplers is not None).upsamplers[0].conv.conv
    num_copies = conv.out_channels // NUM_CHANNELS
    set_map(conv, torch.eye(NUM_CHANNELS).repeat_interleave(num_copies, dim=0), now)

    shrink(conv_out)
    colours = NORM_SCALE * _pairs()[:NUM_COLOURS]
    add_map(conv_out, colours.repeat_interleave(PIXELS_PER_PATCH, dim=0), now)


def _pairs() -> torch.Tensor:
    """Returns the matrix from the signals' channels, then those of their negatives, to the signals."""
    identity = torch.eye(NUM_SIGNALS)
    return torch.cat([identity, -identity], dim=1)
