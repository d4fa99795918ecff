"""Times of kernels by formulas, in microseconds: what tables are fitted to, and what stands in for a missing table."""

import math
from collections.abc import Mapping

from foretune.catalog.devices import Device
from foretune.catalog.kernel_tables import AttentionFit, ProductFit, best_rates
from foretune.planner.timing.speed import NotKnown, ProductFormat

QUERIES_PER_BLOCK = 128

_RATE_FIELDS: Mapping[ProductFormat, str] = {
    "fp32": "fp32_tflops",
    "tf32": "tf32_dense_tflops",
    "bf16": "bf16_dense_tflops",
    "fp16": "fp16_dense_tflops",
    "fp8": "fp8_dense_tflops",
    "int8": "int8_dense_tops",
}
_INPUT_BYTES: Mapping[ProductFormat, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}

_USUAL_BEST_SHARE = 0.8
"""Best measured share of the 16-bit peak where nobody published one: the median of the rows of best_rates.csv for
cards with matrix units at full rate; they lie between 0.58 (MI300X) and 0.92 (RTX PRO 6000).
"""
_HALF_RATE_BEST_SHARE = 1.09
"""The same for GeForce cards, which halve the rate if sums are in fp32: their clock exceeds the data sheet's and the
matrix units are not short of data. RTX 3090 1.10, 3090 Ti 1.08, 4090 1.08, 5090 1.21.
"""
_HALF_RATE_RATIO = 2.1
"""bf16 over fp32 rate: 2 for GeForce cards, 4 and more for all others."""
_FP32_BEST_SHARE = 0.75
"""Without matrix units: 0.67 to 0.79 measured (github:xzwgit/gpu-flops-bench@14a1e5e2838e:README.md)."""


def best_share(device: Device) -> float:
    """The best measured rate of a 16-bit matrix product as a share of the data sheet's."""
    peak = device.bf16_dense_tflops or device.fp16_dense_tflops
    if peak is None:
        return _USUAL_BEST_SHARE
    if device.row_name in best_rates():
        return best_rates()[device.row_name].tflops / peak
    if device.kind == "cuda" and device.fp32_tflops is not None and peak / device.fp32_tflops < _HALF_RATE_RATIO:
        return _HALF_RATE_BEST_SHARE
    return _USUAL_BEST_SHARE


def best_rate(device: Device, number_format: ProductFormat) -> float:
    """Operations a second of one logical device in large matrix products."""
    peak: float | None = getattr(device, _RATE_FIELDS[number_format])
    if peak is None:
        raise NotKnown(f"the {number_format} rate of {device.title} ({_RATE_FIELDS[number_format]})")
    share = _FP32_BEST_SHARE if number_format == "fp32" else best_share(device)
    return peak * 1e12 * share / device.num_logical_devices


def bandwidth(device: Device) -> float:
    """Bytes a second of one logical device, by the data sheet."""
    if device.bandwidth_gb_per_s is None:
        raise NotKnown(f"the memory bandwidth of {device.title} (bandwidth_gb_per_s)")
    return device.bandwidth_gb_per_s * 1e9 / device.num_logical_devices


def product_bytes(m: float, n: float, k: float, number_format: ProductFormat) -> float:
    """Memory traffic of a product whose operands are read once. fp8 first quantises an activation of 16 bits."""
    size = _INPUT_BYTES[number_format]
    quantisation = 3 * m * k if number_format == "fp8" else 0
    return size * (m * k + k * n) + max(size, 2) * m * n + quantisation


def product_us(
    fit: ProductFit,
    shape: tuple[float, float, float],
    number_format: ProductFormat,
    *,
    flops_per_s: float,
    bytes_per_s: float,
) -> float:
    """[m, k] x [k, n] by the formula. On devices of an architecture that it was not fitted to, its median error is 9 %
    in bf16, 15 % in fp8 and 23 % in int8, where a share of the data sheet's peak misses bf16 by 23 % and small
    products by far more (`Estimates.held_out`, for 64 rows and more).
    """
    m, n, k = shape
    computing_us = 2e6 * m * n * k / (flops_per_s * fit.efficiency)
    moving_us = 1e6 * product_bytes(m, n, k, number_format) / (bytes_per_s * fit.bandwidth_share)
    return fit.latency_us + fit.us_per_1000_k * k / 1000 + math.hypot(computing_us, moving_us)


def padded_head_dim(fit: AttentionFit, head_dim: float) -> int:
    """The head size that the kernel computes with: the next one that it is built for, else the next multiple of 64."""
    return next((size for size in fit.efficiency if head_dim <= size), math.ceil(head_dim / 64) * 64)


def attention_us(
    fit: AttentionFit, num_heads: float, queries: float, keys: float, head_dim: float, *, flops_per_s: float
) -> float:
    """The forward pass for this many heads, of all samples together."""
    padded = padded_head_dim(fit, head_dim)
    efficiency = fit.efficiency.get(padded, fit.efficiency[max(fit.efficiency)])
    waves = num_heads * math.ceil(queries / QUERIES_PER_BLOCK) / fit.slots
    smooth = max(1.0, waves)
    waves = smooth + fit.blend * (math.ceil(waves) - smooth)
    wave_flops = 4 * QUERIES_PER_BLOCK * padded * (keys + fit.extra_keys) * fit.slots
    return fit.latency_us + 1e6 * waves * wave_flops / (flops_per_s * efficiency)
