"""The shapes of products, convolutions and attention: what their time on a device depends on."""

from math import prod
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_FIRST_FACTOR = {
    _aten.mm: 0, _aten.bmm: 0, _aten._scaled_mm: 0, _aten._int_mm: 0, _aten.addmm: 1, _aten.baddbmm: 1,
}  # fmt: skip
"""Index of the first of the two matrices among an operator's arguments."""
_BITSANDBYTES_INT8 = "int8_linear_matmul"
"""Its weight has one row for each output. By name, because the library may not be installed."""
_ATTENTION_OF_CPU = {
    _aten._scaled_dot_product_flash_attention_for_cpu: 0,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: 1,
}
"""Index of the query among its arguments."""


def shape_of_work(func: Any, args: tuple[Any, ...], results: list[Tensor]) -> tuple[int, ...]:
    """Returns batch, m, n, k of a product or a convolution, the sizes of attention, or nothing."""
    packet = func.overloadpacket
    if packet in _FIRST_FACTOR:
        first, second = args[_FIRST_FACTOR[packet]], args[_FIRST_FACTOR[packet] + 1]
        *batch, m, k = first.shape
        return prod(batch), m, second.shape[-1], k
    if packet.__name__ == _BITSANDBYTES_INT8:
        values, weight = args[:2]
        return 1, prod(values.shape[:-1]), weight.shape[0], weight.shape[1]
    if packet is _aten.convolution:
        values, weight, out = args[0], args[1], results[0]
        return _convolution(values, weight, out, is_transposed=args[6], groups=args[8])
    if packet is _aten.convolution_backward:
        gradient, values, weight = args[:3]
        return _convolution(values, weight, gradient, is_transposed=args[7], groups=args[9])
    if packet in _ATTENTION_OF_CPU:
        place = _ATTENTION_OF_CPU[packet]
        return attention_shape(args[place], args[place + 1])
    return ()


def dtype_of_work(func: Any, args: tuple[Any, ...], results: list[Tensor]) -> torch.dtype:
    """Returns the dtype that an operator computes in: that of a product's factors, or of the result."""
    packet = func.overloadpacket
    if packet.__name__ == _BITSANDBYTES_INT8:
        return torch.int8
    factor = args[_FIRST_FACTOR[packet]] if packet in _FIRST_FACTOR else results[0]
    dtype: torch.dtype = factor.dtype
    return dtype


def attention_shape(query: Tensor, key: Tensor) -> tuple[int, ...]:
    """Returns batch, heads, queries, keys and head size."""
    batch, heads, rows, width = query.shape
    return batch, heads, rows, key.shape[-2], width


def _convolution(
    values: Tensor, weight: Tensor, out: Tensor, *, is_transposed: bool, groups: int
) -> tuple[int, int, int, int]:
    """Returns the products that a convolution is: every position has one row of inputs under the kernel.

    A transposed convolution is the gradient of a plain one, so input and output change places.
    """
    if is_transposed:
        values, out = out, values
    positions = out.shape[0] * prod(out.shape[2:])
    return groups, positions, weight.shape[0] // groups, prod(weight.shape[1:])
