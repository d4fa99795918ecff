"""Times of fused attention as PyTorch runs it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from foretune.catalog.devices import Device
from foretune.catalog.kernel_tables import AttentionFit, SdpaKernel, estimates, kernel_table
from foretune.planner.timing.formulas import attention_us, bandwidth, best_rate, best_share
from foretune.planner.timing.products import kin_of
from foretune.planner.timing.speed import NotKnown

SDPA_SLOWER_THAN_FA3: Mapping[SdpaKernel, Mapping[int, float]] = {
    "flash_attention_2": {64: 1.48, 96: 1.60, 128: 1.73},
    "cudnn": {64: 1.17, 96: 1.11, 128: 1.05},
}
"""How many times longer it takes than FlashAttention 3, by head size. H100 SXM, forward, no mask, 4096 tokens, TFLOPS
of FlashAttention 2, cuDNN and FlashAttention 3: 321, 408 and 476 at head size 64; 368, 609 and 638 at 128
(FlashAttention-3, arXiv:2407.08608, figures of forward speed). 96 is the geometric mean. In sequences of 512 tokens
FlashAttention 2 is 1.18 and 1.51 times slower, and cuDNN as fast as FlashAttention 3.
"""

BACKWARD_FLOPS = 2.5
"""Five matrix products where the forward pass has two: scores are recomputed (FlashAttention-2, arXiv:2307.08691)."""
BACKWARD_EFFICIENCY = 0.8
"""Of the forward pass's. H100, head size 128, no mask, 2048 and 4096 tokens: FlashAttention 2 0.80 and 0.84, cuDNN 0.75
and 0.82, FlashAttention 3 0.80 and 0.85 (FlashAttention-3, figures of forward and backward speed).
"""

MASKED_FORWARD = 2.1
"""How many times longer PyTorch's memory-efficient kernel takes than FlashAttention 2, which takes no mask. A100, fp16,
head size 128, 8096 tokens, forward: 107.8 TFLOPS (github:facebookresearch/xformers, pull request 389: 49,828 us for 160
heads), where FlashAttention 2 reaches about 225 (arXiv:2307.08691, forward without a causal mask)."""
MASKED_BACKWARD = 2.3
"""A100, head size 128, 8192 tokens under a causal mask, backward: 75 TFLOPS (the same project, pull request 479: 91,356
us for 160 heads), where FlashAttention 2 reaches about 175. Read from a figure, so plus or minus a tenth."""
_RUNS_CUDNN = re.compile(r"Hopper|Blackwell( Ultra)?$")
"""Architectures on which PyTorch prefers cuDNN's kernels, which take masks."""

TFLOPS_PER_SLOT = 0.6
"""fp32 rate of one streaming multiprocessor, in each of which one block runs at a time: 0.43 (RTX 3090) to 0.69 (L40S).
It only counts where there are fewer blocks than slots.
"""
_LEAST_SLOTS = 8.0


@dataclass(frozen=True)
class AttentionTimes:
    """The formula with all that it needs."""

    fit: AttentionFit
    flops_per_s: float
    bytes_per_s: float

    def seconds(
        self, batch: float, heads: float, queries: float, keys: float, head_dim: float, *, is_backward: bool
    ) -> float:
        time_us = attention_us(self.fit, batch * heads, queries, keys, head_dim, flops_per_s=self.flops_per_s)
        if is_backward:
            running_us = time_us - self.fit.latency_us
            time_us = self.fit.latency_us + running_us * BACKWARD_FLOPS / BACKWARD_EFFICIENCY
        # Queries, keys, values and output; in the backward pass the same and their gradients.
        moved = batch * heads * head_dim * 4 * (queries + keys) * (2 if is_backward else 1)
        return max(time_us * 1e-6, moved / self.bytes_per_s)


def attention_times(device: Device, sdpa: SdpaKernel) -> AttentionTimes:
    """The device's own fit, that of a card with the same chip, or the mean of FlashAttention 2 on other cards. Made
    without the L40S, this mean misses its kernels by 22 % (median); without the RTX PRO 6000, its kernels by 7 %.
    """
    if device.kind == "cpu":
        raise NotKnown(f"the speed of fused attention on {device.title}: the formula describes GPUs")
    rate = best_rate(device, "fp16" if device.bf16_dense_tflops is None else "bf16")
    kin = kin_of(device)
    table = kernel_table(kin.name) if kin is not None else None
    if kin is None or table is None:
        return AttentionTimes(_without_table(device), rate, bandwidth(device))
    # Efficiencies are shares of the data sheet's rate; another card with the chip keeps the share of its best rate.
    fit = _as_sdpa(table.attention, sdpa)
    return AttentionTimes(fit, rate / best_share(kin), bandwidth(device))


def masked_attention(device: Device, sdpa: SdpaKernel, *, is_backward: bool) -> float:
    """Returns how many times longer attention takes with a mask than without. On AMD the same kernels run."""
    has_cudnn = sdpa == "cudnn" and _RUNS_CUDNN.match(device.arch) is not None
    if device.kind != "cuda" or has_cudnn:
        return 1.0
    return MASKED_BACKWARD if is_backward else MASKED_FORWARD


def _without_table(device: Device) -> AttentionFit:
    """Too fast for Volta and Turing, for which PyTorch has no FlashAttention 2; how much is not known."""
    pooled = estimates().attention
    if device.fp32_tflops is None:
        return pooled
    slots = device.fp32_tflops / device.num_logical_devices / TFLOPS_PER_SLOT
    return replace(pooled, slots=max(_LEAST_SLOTS, slots))


def _as_sdpa(fit: AttentionFit, sdpa: SdpaKernel) -> AttentionFit:
    """FlashAttention 3 is not part of PyTorch: the same with the kernel that is."""
    if fit.kernel != "fa3":
        return fit
    slower = SDPA_SLOWER_THAN_FA3[sdpa]
    return replace(fit, kernel=sdpa, efficiency={size: share / slower[size] for size, share in fit.efficiency.items()})
