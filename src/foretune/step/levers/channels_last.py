"""Images that lie in memory pixel by pixel."""

import torch
from torch import nn


def apply_channels_last(denoiser: nn.Module) -> int:
    """Lays the weights of convolutions out so; images follow from the first of them on. Returns how many there are."""
    num_weights = 0
    for module in denoiser.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
            num_weights += 1
    return num_weights
