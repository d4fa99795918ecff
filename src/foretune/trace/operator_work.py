"""What an operator does: kind, dtype, FLOPs, bytes, and the shape that its time on a device depends on."""

from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

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


class OperatorWork(NamedTuple):
    """What an operator does, as far as its arguments' shapes tell."""

    kind: str
    dtype: str
    flops: int
    bytes_by_tensor: tuple[int, ...]
    shape: tuple[int, ...]


def work_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, results: list[Tensor]) -> OperatorWork:
    name = func.overloadpacket.__name__
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    moved = tuple(min(t.numel() * t.element_size(), t.untyped_storage().nbytes()) for t in (*inputs, *results))
    formula = flop_registry.get(func.overloadpacket)
    flops = int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0
    if func.overloadpacket in _ATTENTION_OF_CPU:
        # torch's registry has the kernels of GPUs alone.
        is_backward = _ATTENTION_OF_CPU[func.overloadpacket] > 0
        flops = (10 if is_backward else 4) * prod(_shape(func, args, results))
    kind = "conv" if "conv" in name else "attention" if "attention" in name else None
    if flops and kind is None:
        kind = "matmul"
    dtype = dtype_name(_dtype(func, args, results))
    return OperatorWork(kind or "pointwise", dtype, flops, moved, _shape(func, args, results))


def _shape(func: Any, args: tuple[Any, ...], results: list[Tensor]) -> tuple[int, ...]:
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


def _dtype(func: Any, args: tuple[Any, ...], results: list[Tensor]) -> torch.dtype:
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


@cache
def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
