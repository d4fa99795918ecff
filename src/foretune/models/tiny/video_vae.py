"""What the tiny video VAEs have in common: latents with a meaning, without training, by the idea of `vae`.

A latent holds the mean red, green, blue and brightness of 8 x 8 px over the frames that it stands for, and decoding
paints these pixels and frames in that colour. The path along the skip connections is set by hand; the residual branches
and the attention have random weights, scaled down.

A signal travels with its negative, because silu(x) - silu(-x) = x undoes the activation before the last layer. A
constant dominates what the norm before that activation divides by, so that the norm hardly depends on the clip.
"""

import torch
from torch import nn

Layer = nn.Linear | nn.Conv2d | nn.Conv3d

NUM_COLOURS = 3
NUM_SIGNALS = 4
# The branches mostly add a random offset: with the image VAE's 0.05, colours in -1..1 were off by up to 0.08 (static
# clips, three seeds); with this value, by up to 0.05.
RESIDUAL_SCALE = 0.02


def signals_of_colours() -> torch.Tensor:
    """Returns the matrix from red, green and blue to the four signals: the colours and the brightness."""
    # Brightness is weighted to have a colour's deviation if the three colours are independent.
    return torch.cat([torch.eye(NUM_COLOURS), torch.full((1, NUM_COLOURS), NUM_COLOURS**-0.5)])


def mean_taps(layer: nn.Conv2d | nn.Conv3d, *box: slice | int) -> torch.Tensor:
    """Returns a kernel that takes the mean over a box of its taps: frames (if any), rows, columns."""
    taps = torch.zeros(layer.kernel_size)
    taps[box] = 1.0
    return taps / taps.sum()


def set_map(layer: Layer, matrix: torch.Tensor, taps: torch.Tensor | None = None) -> torch.Tensor:
    """Makes the layer compute this matrix over the channels and nothing else; returns the bias, which is zero."""
    layer.weight.zero_()
    add_map(layer, matrix, taps)
    return _zero_bias(layer)


def add_map(layer: Layer, matrix: torch.Tensor, taps: torch.Tensor | None = None) -> None:
    """Adds a matrix from the layer's first inputs to its first outputs; a convolution applies it at these taps."""
    num_outputs, num_inputs = matrix.shape
    layer.weight[:num_outputs, :num_inputs] += matrix if taps is None else torch.tensordot(matrix, taps, dims=0)


def shrink(layer: Layer) -> torch.Tensor:
    """Scales the random weight of a layer down; returns the bias, which is zero."""
    layer.weight.mul_(RESIDUAL_SCALE)
    return _zero_bias(layer)


def _zero_bias(layer: Layer) -> torch.Tensor:
    return torch.zeros(0) if layer.bias is None else layer.bias.zero_()
