"""The kernels that are measured, as pieces of work for one device."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from foretune.accelerator import page_locked
from foretune.accelerator.copies import copy
from foretune.core.values.device_profile import MeasuredFormat, MemoryOperator
from foretune.measure.calibration.pool import Pool
from foretune.measure.calibration.rounds import Run, TimedPiece
from foretune.measure.calibration.sizes import Convolution, Sizes
from foretune.step.precision import PrecisionPolicy

_NORMALISED = 256
"""Channels that layer normalisation runs over."""
_BYTES_PER_ELEMENT: dict[MemoryOperator, int] = {"add": 12, "layer_norm": 8, "gelu": 8, "cast": 6}
"""Read and written in fp32; `cast` writes bf16."""


@dataclass(frozen=True)
class Key:
    """Which point of a profile a piece measures."""

    what: str
    """product, convolution, attention, memory or copy."""
    number_format: str
    """The operator of memory."""
    sizes: tuple[int, ...]
    is_backward: bool = False


@dataclass(frozen=True)
class Kernels:
    """Makes pieces for a device."""

    device: torch.device
    window_bytes: int

    def pool(self, dtype: torch.dtype) -> Pool:
        return Pool(self.device, dtype, self.window_bytes)

    def products(self, number_format: MeasuredFormat, sizes: Sizes) -> Iterator[TimedPiece]:
        """Those of one layer: output, gradient of the input, gradient of the weight."""
        pool, context = self._of(number_format)
        for m, n, k in sizes.products:
            makers = [partial(_product, pool, m, n, k, layout) for layout in ("nt", "nn", "tn")]
            key = Key("product", number_format, (1, m, n, k))
            yield _piece(key, m * n * k, *(_within(context, maker) for maker in makers))
        for batch, m, n, k in sizes.batched_products:
            key = Key("product", number_format, (batch, m, n, k))
            maker = _within(context, partial(_batched_product, pool, batch, m, n, k))
            yield _piece(key, batch * m * n * k, maker, group=f"batched {number_format}")

    def attention(self, number_format: MeasuredFormat, sizes: Sizes) -> Iterator[TimedPiece]:
        pool, context = self._of(number_format)
        for found in sizes.attention:
            for is_backward in (False, True):
                key = Key("attention", number_format, found, is_backward)
                yield _piece(key, math.prod(found), _within(context, partial(_attention, pool, found, is_backward)))

    def convolutions(self, number_format: MeasuredFormat, sizes: Sizes) -> Iterator[TimedPiece]:
        pool, context = self._of(number_format)
        for found in sizes.convolutions:
            for is_backward in (False, True):
                key = Key("convolution", number_format, found.as_product, is_backward)
                maker = _within(context, partial(_convolution, pool, found, is_backward))
                yield _piece(key, math.prod(found.as_product), maker)

    def memory(self, sizes: Sizes) -> Iterator[TimedPiece]:
        pool = self.pool(torch.float32)
        for operator, element_bytes in _BYTES_PER_ELEMENT.items():
            for num_bytes in sizes.memory_bytes:
                rows = max(1, num_bytes // (element_bytes * _NORMALISED))
                key = Key("memory", operator, (rows * _NORMALISED * element_bytes,))
                yield _piece(key, num_bytes, partial(_memory, pool, operator, rows))

    def copies(self, sizes: Sizes) -> Iterator[TimedPiece]:
        """Between pinned host memory and the device, each way."""
        for num_bytes in sizes.copy_bytes:
            for to_host in (False, True):
                key = Key("copy", "to host" if to_host else "to device", (num_bytes,))
                yield _piece(key, num_bytes, partial(_copy, self.device, num_bytes, to_host))

    def _of(self, number_format: MeasuredFormat) -> tuple[Pool, Callable[[], AbstractContextManager[object]]]:
        policy = PrecisionPolicy(number_format)
        return self.pool(policy.compute_dtype), policy.products


def _piece(key: Key, work: float, *variants: Callable[[], Run], group: str | None = None) -> TimedPiece:
    default = f"{key.what} {key.number_format}{' backward' if key.is_backward else ''}"
    return TimedPiece(key, group or default, work, variants)


def _within(context: Callable[[], AbstractContextManager[object]], prepare: Callable[[], Run]) -> Callable[[], Run]:
    """Sets how fp32 is multiplied. It is set and put back outside of what is measured where the device has a queue."""

    def prepared() -> Run:
        run = prepare()

        def in_context() -> object:
            with context():
                return run()

        return in_context if torch.cuda.is_available() else run

    return prepared


def _product(pool: Pool, m: int, n: int, k: int, layout: str) -> Run:
    left = pool.take((k, m) if layout == "tn" else (m, k))[0]
    right = pool.take((n, k) if layout == "nt" else (k, n))[0]
    return partial(torch.mm, left.t() if layout == "tn" else left, right.t() if layout == "nt" else right)


def _batched_product(pool: Pool, batch: int, m: int, n: int, k: int) -> Run:
    return partial(torch.bmm, *pool.take((batch, m, k), (batch, k, n)))


def _attention(pool: Pool, sizes: tuple[int, ...], is_backward: bool) -> Run:
    heads, queries, keys, head_dim = sizes
    shapes = [(1, heads, tokens, head_dim) for tokens in (queries, keys, keys)]
    q, k, v = pool.take(*shapes)
    if not is_backward:
        return partial(functional.scaled_dot_product_attention, q, k, v)
    return _backward(functional.scaled_dot_product_attention, q, k, v)


def _convolution(pool: Pool, sizes: Convolution, is_backward: bool) -> Run:
    image, weight = pool.take(
        (sizes.images, sizes.channels_in, sizes.side_px, sizes.side_px),
        (sizes.channels_out, sizes.channels_in, sizes.kernel, sizes.kernel),
    )
    apply = partial(functional.conv2d, padding=sizes.kernel // 2)
    return _backward(apply, image, weight) if is_backward else partial(apply, image, weight)


def _backward(apply: Callable[..., torch.Tensor], *operands: torch.Tensor) -> Run:
    """The backward pass alone, with gradients for all operands."""
    with torch.enable_grad():
        leaves = [operand.detach().requires_grad_() for operand in operands]
        out = apply(*leaves)
    return partial(torch.autograd.grad, out, leaves, torch.ones_like(out), retain_graph=True)


def _memory(pool: Pool, operator: MemoryOperator, rows: int) -> Run:
    one, other = pool.take((rows, _NORMALISED), (rows, _NORMALISED))
    if operator == "add":
        return partial(torch.add, one, other)
    if operator == "layer_norm":
        return partial(functional.layer_norm, one, (_NORMALISED,))
    if operator == "gelu":
        return partial(functional.gelu, one)
    return partial(one.to, torch.bfloat16)


def _copy(device: torch.device, num_bytes: int, to_host: bool) -> Run:
    there = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    host = page_locked.empty_like(there, device)
    return partial(copy, host, there) if to_host else partial(copy, there, host)
