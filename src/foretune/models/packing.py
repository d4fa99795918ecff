"""Packs latents into sequences of 2x2 patches and back, with their positions."""

import torch
from torch import Tensor


def pack_patches(latents: Tensor) -> Tensor:
    """Packs (batch, channels, height, width) into one token per 2x2 patch, row by row."""
    batch, channels, height, width = latents.shape
    patches = latents.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(batch, (height // 2) * (width // 2), channels * 4)


def unpack_patches(tokens: Tensor, shape: torch.Size) -> Tensor:
    """Unpacks tokens into latents of this shape."""
    batch, channels, height, width = shape
    patches = tokens.view(batch, height // 2, width // 2, channels, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return patches.reshape(batch, channels, height, width)


def grid_positions(height: int, width: int, like: Tensor) -> Tensor:
    """Returns (0, row, column) of each grid cell, row by row, with the device and dtype of `like`."""
    rows = torch.arange(height, device=like.device, dtype=like.dtype)[:, None].expand(height, width)
    columns = torch.arange(width, device=like.device, dtype=like.dtype)[None, :].expand(height, width)
    return torch.stack((torch.zeros_like(rows), rows, columns), dim=-1).reshape(height * width, 3)
