"""A tiny VAE of Mochi 1: 8 px and 6 frames per latent, the first frame alone.

It has 12 latent channels, the number that the pipeline insists on: four signals for each third of the six frames.

Its norms are GroupNorms over one frame with 32 groups. A group of one or two channels would lose the mean of the frame;
so the last level of the encoder, where a norm lies on the skip path, has three: a signal, its negative and a constant.
At that width a block has 500 thousand weights, so this level and the decoder's first one have no blocks.
"""

from itertools import product

import torch
from diffusers import AutoencoderKLMochi
from diffusers.models.attention_processor import Attention
from diffusers.models.autoencoders.autoencoder_kl_mochi import MochiResnetBlock3D
from torch import nn

from foretune.models.tiny.vae import COLOUR_DEVIATION, LOG_VARIANCE
from foretune.models.tiny.video_vae import (
    NUM_COLOURS,
    NUM_SIGNALS,
    add_map,
    mean_taps,
    set_map,
    shrink,
    signals_of_colours,
)

NUM_LATENT_CHANNELS = 12
NUM_THIRDS = 3
NUM_GROUPS = 32
CHANNELS_PER_GROUP = 3
NUM_CHANNELS = NUM_GROUPS
NUM_ENCODED_CHANNELS = NUM_GROUPS * CHANNELS_PER_GROUP

CONSTANT = 6.0
# Of a signal, its negative and the constant: the mean, and the deviation if the signal is small next to the constant.
GROUP_MEAN = CONSTANT / 3
GROUP_DEVIATION = CONSTANT * 2**0.5 / 3
PAIR = torch.tensor([[1.0], [-1.0], [0.0]])
CONSTANT_OF_GROUP = torch.tensor([[0.0, 0.0, 1.0]])


def build_mochi_vae() -> AutoencoderKLMochi:
    """Builds a VAE with the published mean and deviation; normalised by them, latents have a deviation near 1."""
    vae = AutoencoderKLMochi(
        encoder_block_out_channels=(NUM_CHANNELS,) * 3 + (NUM_ENCODED_CHANNELS,),
        decoder_block_out_channels=(NUM_CHANNELS,) * 4,
        layers_per_block=(1, 1, 1, 0, 0),
        latent_channels=NUM_LATENT_CHANNELS,
    )
    with torch.no_grad():
        for module in vae.modules():
            if isinstance(module, MochiResnetBlock3D):
                shrink(module.conv2.conv)
            elif isinstance(module, Attention):
                shrink(module.to_out[0])
        _wire_encoder(vae)
        _wire_decoder(vae)
    return vae.eval()


def _wire_encoder(vae: AutoencoderKLMochi) -> None:
    encoder = vae.encoder
    set_map(encoder.proj_in, signals_of_colours())
    first, second, third = (block.conv_in.conv for block in encoder.down_blocks)
    for conv in (first, second):
        set_map(conv, torch.eye(NUM_CHANNELS), mean_taps(conv, slice(None)))
    bias = shrink(third)
    for frame, of_frame in enumerate(torch.eye(NUM_THIRDS)):
        add_map(third, torch.kron(of_frame[:, None], torch.kron(torch.eye(NUM_SIGNALS), PAIR)), mean_taps(third, frame))
    bias.view(NUM_GROUPS, CHANNELS_PER_GROUP)[:, 2] = CONSTANT
    # The norm subtracts the group's mean; the activation must see a pair around zero.
    encoder.norm_out.norm_layer.bias.fill_(GROUP_MEAN / GROUP_DEVIATION)

    latents_per_signal, mean = _latents_per_signal(vae), torch.tensor(vae.config.latents_mean)
    # The last layer has no bias; it reads the constants instead.
    bias_per_constant = 1 / nn.functional.silu(torch.tensor(CONSTANT / GROUP_DEVIATION))
    means = torch.kron(torch.diag(GROUP_DEVIATION * latents_per_signal), PAIR.T)
    means += torch.kron(torch.diag(mean * bias_per_constant), CONSTANT_OF_GROUP)
    log_variances = torch.kron(torch.eye(NUM_LATENT_CHANNELS) * LOG_VARIANCE * bias_per_constant, CONSTANT_OF_GROUP)
    shrink(encoder.proj_out)
    add_map(encoder.proj_out, torch.cat([means, log_variances]))


def _wire_decoder(vae: AutoencoderKLMochi) -> None:
    decoder = vae.decoder
    # The signals of the three thirds, then their negatives.
    spread = torch.cat([torch.eye(NUM_LATENT_CHANNELS), -torch.eye(NUM_LATENT_CHANNELS)])
    latents_per_signal, mean = _latents_per_signal(vae), torch.tensor(vae.config.latents_mean)
    bias = set_map(decoder.conv_in, spread / latents_per_signal, torch.ones(1, 1, 1))
    bias[: len(spread)] = -spread @ (mean / latents_per_signal)

    # Outputs of these layers are ordered by channel, then by frame, row and column of what a pixel is expanded to.
    first, second, third = decoder.up_blocks
    expand = torch.zeros(2, NUM_SIGNALS, NUM_THIRDS, 2 * 2, 2, NUM_THIRDS, NUM_SIGNALS)
    for sign, signal, frame in product(range(2), range(NUM_SIGNALS), range(NUM_THIRDS)):
        expand[sign, signal, frame, :, sign, frame, signal] = 1.0
    set_map(first.proj, expand.flatten(0, 3).flatten(1))
    for block in (second, third):
        num_copies = block.proj.out_features // NUM_CHANNELS
        set_map(block.proj, torch.eye(NUM_CHANNELS).repeat_interleave(num_copies, dim=0))

    shrink(decoder.proj_out)
    add_map(decoder.proj_out, torch.cat([torch.eye(NUM_SIGNALS), -torch.eye(NUM_SIGNALS)], dim=1)[:NUM_COLOURS])


def _latents_per_signal(vae: AutoencoderKLMochi) -> torch.Tensor:
    return torch.tensor(vae.config.latents_std) / COLOUR_DEVIATION
