"""A tiny VAE with meaningful latents, without training.

A VAE with initial weights loses the image: its output is mostly its own biases, so no sample could match a caption.
Here the path along the skip connections is set by hand. A latent holds the mean red, green, blue and brightness of 8 x
8 px; decoding paints those 8 x 8 px in that colour. The residual branches and the attention have random weights, scaled
down, so that all layers take part.

On the skip path each signal has four channels: the signal, its negative, a constant and the constant's negative. The
constants dominate the deviation that GroupNorm divides by, so that it hardly depends on the image, and the pair undoes
the activation before the last convolution exactly: silu(x) - silu(-x) = x.
"""

import torch
from diffusers import AutoencoderKL
from diffusers.models.attention_processor import Attention
from diffusers.models.downsampling import Downsample2D
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.upsampling import Upsample2D
from torch import nn

NUM_LATENT_CHANNELS = 4
CHANNELS_PER_SIGNAL = 4

CONSTANT = 4.0
# Deviation over the four channels if the signal is small compared with the constant: half of them are +-CONSTANT.
GROUP_NORM_SCALE = CONSTANT / 2**0.5
RESIDUAL_SCALE = 0.05
# Deviation of colours in [-1, 1], mapped to latents of deviation 1 after scaling. Uniform colours have 0.58,
# colours that are each fully on or off have 1; pictures of shapes were measured at 0.62 to 0.71.
COLOUR_DEVIATION = 0.7
# Trained VAEs have nearly deterministic latents: exp(-6 / 2) is a deviation of 0.05.
LOG_VARIANCE = -6.0


def build_vae(*, scaling_factor: float, shift_factor: float) -> AutoencoderKL:
    """Builds a VAE with 4 latent channels and 8 px per latent; shifted and scaled, latents have a deviation near 1."""
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(CHANNELS_PER_SIGNAL * NUM_LATENT_CHANNELS,) * 4,
        layers_per_block=1,
        act_fn="silu",
        latent_channels=NUM_LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=64,
        scaling_factor=scaling_factor,
        shift_factor=shift_factor,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    latents_per_signal = 1 / (scaling_factor * COLOUR_DEVIATION)
    with torch.no_grad():
        _quieten_branches(vae)
        _wire_encoder(vae.encoder.conv_in, vae.encoder.conv_out, latents_per_signal, shift_factor)
        _wire_decoder(vae.decoder.conv_in, vae.decoder.conv_out, latents_per_signal, shift_factor)
    return vae.eval()


def _quieten_branches(vae: AutoencoderKL) -> None:
    """Passes the skip path unchanged from level to level, and scales down what is added to it."""
    for module in vae.modules():
        if isinstance(module, ResnetBlock2D):
            _shrink(module.conv2)
        elif isinstance(module, Attention):
            _shrink(module.to_out[0])
        elif isinstance(module, Downsample2D):
            _halve_by_mean(module.conv)
        elif isinstance(module, Upsample2D):
            _pass_through(module.conv)


def _wire_encoder(conv_in: nn.Conv2d, conv_out: nn.Conv2d, latents_per_signal: float, shift: float) -> None:
    # Brightness is weighted to have a colour's deviation if the three colours are independent.
    colours_and_brightness = torch.cat([torch.eye(3), torch.full((1, 3), 3**-0.5)])
    _split_signals(conv_in, colours_and_brightness)
    bias = _shrink(conv_out)
    _join_signals(conv_out, NUM_LATENT_CHANNELS, latents_per_signal)
    bias[:NUM_LATENT_CHANNELS] = shift
    bias[NUM_LATENT_CHANNELS:] = LOG_VARIANCE


def _wire_decoder(conv_in: nn.Conv2d, conv_out: nn.Conv2d, latents_per_signal: float, shift: float) -> None:
    _split_signals(conv_in, torch.eye(NUM_LATENT_CHANNELS) / latents_per_signal, offset=shift)
    _shrink(conv_out)
    _join_signals(conv_out, num_signals=3, gain=1.0)


def _split_signals(conv: nn.Conv2d, signals: torch.Tensor, offset: float = 0.0) -> None:
    """Writes four channels for each row of `signals`, a linear combination of the inputs minus the offset."""
    bias = _clear(conv)
    for index, signal in enumerate(signals):
        first = CHANNELS_PER_SIGNAL * index
        for channel, sign in ((first, 1.0), (first + 1, -1.0)):
            conv.weight[channel, :, 1, 1] = sign * signal
            bias[channel] = -sign * offset * signal.sum()
        bias[first + 2] = CONSTANT
        bias[first + 3] = -CONSTANT


def _join_signals(conv: nn.Conv2d, num_signals: int, gain: float) -> None:
    """Adds the difference of signal i's pair to output i, and undoes GroupNorm's division."""
    for index in range(num_signals):
        first = CHANNELS_PER_SIGNAL * index
        conv.weight[index, first, 1, 1] += gain * GROUP_NORM_SCALE
        conv.weight[index, first + 1, 1, 1] -= gain * GROUP_NORM_SCALE


def _halve_by_mean(conv: nn.Conv2d) -> None:
    """Halves both sides with the mean of 2 x 2 px; the layer pads on the right and bottom only."""
    _clear(conv)
    for channel in range(conv.out_channels):
        conv.weight[channel, channel, :2, :2] = 0.25


def _pass_through(conv: nn.Conv2d) -> None:
    """Copies each input channel to the output channel with the same index."""
    _clear(conv)
    nn.init.dirac_(conv.weight)


def _shrink(layer: nn.Conv2d | nn.Linear) -> torch.Tensor:
    """Scales the weight down, zeroes the bias and returns the bias."""
    layer.weight.mul_(RESIDUAL_SCALE)
    assert layer.bias is not None
    return layer.bias.zero_()


def _clear(conv: nn.Conv2d) -> torch.Tensor:
    """Zeroes the weight and the bias, and returns the bias."""
    conv.weight.zero_()
    assert conv.bias is not None
    return conv.bias.zero_()
