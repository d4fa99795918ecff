"""FP8 matrix products: the device's own kernel, or the same factors multiplied in a wider dtype."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float8_e4m3fn).max
_MULTIPLE = 16  # of both sides of a matrix, required by GPUs
_SMALLEST_SCALE = 1e-12  # for an input that is all zeros

# torch's FP8 kernel for CPUs is far slower than a product in a wider dtype, which represents all factors exactly.
_emulating = {"cpu"}


def is_emulated(device_type: str) -> bool:
    """Whether FP8 products use a wider dtype on this device type."""
    return device_type in _emulating


def fits(num_inputs: int, num_outputs: int) -> bool:
    """Whether devices support FP8 products with a matrix of this size."""
    return num_inputs % _MULTIPLE == 0 and num_outputs % _MULTIPLE == 0


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """Uses the device's kernel everywhere in this context: a planner represents a GPU's tensors by CPU tensors."""
    previous = set(_emulating)
    _emulating.clear()
    try:
        yield
    finally:
        _emulating.update(previous)


def rounded(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a matrix in FP8 and its scale."""
    lowest, highest = torch.aminmax(values)
    scale = (torch.maximum(-lowest, highest).float() / LARGEST).clamp(min=_SMALLEST_SCALE)
    return (values / scale).to(torch.float8_e4m3fn), scale.reshape(1, 1)


def scaled_product(
    left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """Returns left @ right of FP8 matrices, scaled, in a wider dtype; sums are accumulated in fp32."""
    if is_emulated(left.device.type):
        wide = torch.float32 if dtype == torch.float16 else dtype  # unscaled sums overflow fp16
        with torch.autocast(left.device.type, enabled=False):
            out = (left.to(wide) @ right.to(wide)).mul_(left_scale * right_scale).to(dtype)
    else:
        out = torch._scaled_mm(
            left, right, scale_a=left_scale, scale_b=right_scale, out_dtype=dtype, use_fast_accum=True
        )
    return out if bias is None else out.add_(bias)
