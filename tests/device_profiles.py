"""Profiles of devices for tests, of figures that are easy to check."""

from collections.abc import Iterable
from itertools import product
from typing import Any

from foretune.core.values.device_profile import (
    AttentionPoint,
    CollectivePoint,
    ConvolutionPoint,
    CopyPoint,
    DeviceProfile,
    Dispatch,
    KernelTime,
    MemoryPoint,
    ProductPoint,
)

OVERHEAD_S = 1e-5
RATE = 1e11
"""Multiplications a second."""


def timing(seconds: float, spread: float = 0.05) -> KernelTime:
    return KernelTime(seconds, spread)


def product_points(sizes: Iterable[int] = (16, 64, 256, 1024)) -> tuple[ProductPoint, ...]:
    """Of a device with a fixed rate and a fixed overhead."""
    return tuple(
        ProductPoint("fp32", 1, m, n, k, timing(OVERHEAD_S + m * n * k / RATE)) for m, n, k in product(sizes, repeat=3)
    )


def device_profile(**changes: Any) -> DeviceProfile:
    """A CPU with two threads."""
    fields: dict[str, Any] = {
        "device": "Test CPU",
        "kind": "cpu",
        "num_threads": 2,
        "is_default_threads": True,
        "host": "0123456789abcdef",
        "torch": "2.13.0",
        "measured_at": "2026-10-01T12:00:00+00:00",
        "took_s": 45.0,
        "num_rounds": 12,
        "products": (
            *product_points(),
            ProductPoint("fp32", 8, 64, 64, 64, timing(6 * (OVERHEAD_S + 64**3 / RATE))),
        ),
        "convolutions": (
            ConvolutionPoint("fp32", 1024, 64, 256, False, timing(1.5 * (OVERHEAD_S + 1024 * 64 * 256 / RATE))),
            ConvolutionPoint("fp32", 1024, 64, 256, True, timing(2.4 * (OVERHEAD_S + 1024 * 64 * 256 / RATE))),
        ),
        "attention": tuple(
            AttentionPoint("fp32", heads, tokens, tokens, 64, is_backward, timing(heads * tokens**2 * 1e-9 * factor))
            for heads in (4, 16)
            for tokens in (64, 256)
            for is_backward, factor in ((False, 1), (True, 3))
        ),
        "memory": tuple(
            MemoryPoint(operator, num_bytes, timing(seconds))
            for operator in ("add", "layer_norm", "gelu", "cast")
            for num_bytes, seconds in ((2**12, 1e-6), (2**20, 1e-4), (2**24, 4e-3))
        ),
        "dispatch": Dispatch(call=timing(2e-6), backward_call=timing(2e-5), with_autograd=timing(8e-6)),
        "spread": 0.05,
    }
    return DeviceProfile(**fields | changes)


def copies_and_collectives() -> dict[str, Any]:
    """What only an accelerator has."""
    return {
        "kind": "cuda",
        "copies": (CopyPoint(2**20, timing(1e-4)), CopyPoint(2**24, timing(1e-3))),
        "collectives": (CollectivePoint("all_reduce", 2, 2**20, timing(2e-4)),),
    }
