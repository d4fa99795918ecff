"""Products of 8-bit floating-point numbers: the device's own, or the same numbers multiplied in a wider type."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float8_e4m3fn).max
_MULTIPLE = 16  # of both sides of a matrix, as GPUs want it
_SMALLEST_SCALE = 1e-12  # of an input that is all zeros

# There torch's own kernel is far slower than a product in a wider type, in which all these numbers are exact.
_emulating = {"cpu"}


def is_emulated(device_type: str) -> bool:
    """Whether products of 8-bit numbers are made of wider ones there."""
    return device_type in _emulating


def fits(num_inputs: int, num_outputs: int) -> bool:
    """Whether a device multiplies with a matrix of this size."""
    return num_inputs % _MULTIPLE == 0 and num_outputs % _MULTIPLE == 0


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """Takes the device's own product everywhere meanwhile: a planner's tensors for a GPU are those of a CPU."""
    previous = set(_emulating)
    _emulating.clear()
    try:
        yield
    finally:
        _emulating.update(previous)


def rounded(values: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix in 8 bits, and what it must be multiplied with."""
    lowest, highest = torch.aminmax(values)
    scale = (torch.maximum(-lowest, highest).float() / LARGEST).clamp(min=_SMALLEST_SCALE)
    return (values / scale).to(torch.float8_e4m3fn), scale.reshape(1, 1)


def scaled_product(
    left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """left @ right of 8-bit matrices, scaled, in a wider type; sums are kept in fp32."""
    if is_emulated(left.device.type):
        wide = torch.float32 if dtype == torch.float16 else dtype  # sums before scaling are too large for fp16
        with torch.autocast(left.device.type, enabled=False):
            out = (left.to(wide) @ right.to(wide)).mul_(left_scale * right_scale).to(dtype)
    else:
        out = torch._scaled_mm(
            left, right, scale_a=left_scale, scale_b=right_scale, out_dtype=dtype, use_fast_accum=True
        )
    return out if bias is None else out.add_(bias)
