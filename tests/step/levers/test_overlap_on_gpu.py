"""Copies of swapped blocks run beside kernels on a GPU: measured by the profiler. These tests need CUDA."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType

from foretune.choices.swapping import swap_schedule
from foretune.step.levers.checkpointing import apply_checkpointing
from foretune.step.levers.swapping import SwappedBlocks

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu("the profiler's times of copies and kernels")]

NUM_BLOCKS, WIDTH, NUM_TOKENS = 8, 4096, 4096
BLOCK_BYTES = 2 * WIDTH * WIDTH * 2
"""About 2.7 ms over PCIe 4.0 x16; the products of a block take 2 ms or more on cards with less than 150 TFLOP/s."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        self.requires_grad_(False)

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = values + self.second(torch.relu(self.first(values)))
        return out


class Measured(NamedTuple):
    gradient: Tensor
    hidden_share: float
    """Of the time of copies to the device, with kernels beside it."""
    peak_bytes: int


def measured(prefetch: int) -> Measured:
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = nn.Sequential(*(Block() for _ in range(NUM_BLOCKS)))
    blocks = tuple(model)
    schedule = swap_schedule(tuple((number,) for number in range(NUM_BLOCKS)), NUM_BLOCKS, prefetch)
    swapped = SwappedBlocks(blocks, schedule)
    apply_checkpointing(((block,) for block in blocks), keeps_rng=False)
    swapped.place(model, device)
    values = torch.randn(NUM_TOKENS, WIDTH, device=device, dtype=torch.bfloat16).requires_grad_()

    def step() -> Tensor:
        (gradient,) = torch.autograd.grad(model(values).float().square().mean(), values)
        return gradient

    step()  # loads libraries and pins memory
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        gradient = step()
        torch.cuda.synchronize()
    return Measured(gradient, _hidden_share(profiler), torch.cuda.max_memory_allocated())


def _hidden_share(profiler: Any) -> float:
    copies: list[tuple[float, float]] = []
    kernels: list[tuple[float, float]] = []
    for event in profiler.events():
        if event.device_type != DeviceType.CUDA:
            continue
        span = (event.time_range.start, event.time_range.end)
        if "HtoD" in event.name or "HostToDevice" in event.name:
            copies.append(span)
        elif "emcpy" not in event.name and "emset" not in event.name:
            kernels.append(span)
    assert copies, "no copy was recorded"
    hidden = sum(max(0.0, min(end, k_end) - max(start, k_start)) for start, end in copies for k_start, k_end in kernels)
    return hidden / sum(end - start for start, end in copies)


def test_copies_are_hidden_behind_kernels_and_change_nothing(report_figure: Callable[[str], None]) -> None:
    found = [measured(prefetch) for prefetch in (0, 1, 2)]
    shares = ", ".join(f"{one.hidden_share:.0%}" for one in found)
    report_figure(f"copies of swapped blocks beside kernels, with 0, 1 and 2 blocks ahead: {shares}")
    in_turn, ahead, further = found
    assert in_turn.hidden_share < 0.05
    assert ahead.hidden_share > 0.3
    assert further.hidden_share > 0.3
    for one in (ahead, further):
        assert torch.equal(one.gradient, in_turn.gradient)


def test_each_block_ahead_takes_the_memory_of_one() -> None:
    peaks = [measured(prefetch).peak_bytes for prefetch in (0, 1, 2)]
    for fewer, more in pairwise(peaks):
        assert more - fewer == pytest.approx(BLOCK_BYTES, rel=0.02)
