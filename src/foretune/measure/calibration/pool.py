"""Operands of kernels, taken from memory that is filled once."""

import math

import torch

_ALIGNED = 64
"""Elements: every operand begins at a cache line."""
_TILE = 2**20


class Pool:
    """Tensors of any shape as views of one buffer, each from another place.

    So operands come from as far away as in a training step, where activations and weights of other layers were used in
    between: from the last cache of a CPU or the memory behind it, not from the first one.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, window_bytes: int) -> None:
        self._device, self._dtype = device, dtype
        self._window = window_bytes // dtype.itemsize
        self._buffer = torch.empty(0, dtype=dtype, device=device)
        self._next = 0

    def take(self, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
        """Tensors that do not overlap, with values about 0."""
        sizes = [_ALIGNED * math.ceil(math.prod(shape) / _ALIGNED) for shape in shapes]
        self._grow(sum(sizes) + self._window)
        if self._next > self._window:
            self._next = 0
        taken = []
        for shape, size in zip(shapes, sizes, strict=True):
            taken.append(self._buffer[self._next : self._next + math.prod(shape)].view(shape))
            self._next += size
        return taken

    def _grow(self, num_elements: int) -> None:
        if self._buffer.numel() >= num_elements:
            return
        self._buffer = torch.empty(num_elements, dtype=self._dtype, device=self._device)
        tile = torch.randn(min(_TILE, num_elements), device=self._device).to(self._dtype)
        for begin in range(0, num_elements, _TILE):
            part = self._buffer[begin : begin + _TILE]
            part.copy_(tile[: part.numel()])
