"""Checksums that notice any change, and counts."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from foretune.step.weights import checksums, num_changed, num_trained_and_all
from tests.step.small_steps import small_step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_single_bit_is_noticed(dtype: torch.dtype) -> None:
    weights = {"a": nn.Parameter(torch.randn(5, 7, dtype=dtype)), "b": nn.Parameter(torch.randn(3, dtype=dtype))}
    before = checksums(weights)
    assert checksums(weights) == before
    with torch.no_grad():
        element = weights["b"].view(-1)
        # To the next representable number: one bit, mostly the last.
        element[1] = torch.nextafter(element[1], torch.tensor(100.0, dtype=dtype))
    after = checksums(weights)
    assert after["a"] == before["a"]
    assert after["b"] != before["b"]
    assert num_changed(before, after) == 1


def test_minus_zero_is_a_change() -> None:
    weight = {"w": nn.Parameter(torch.zeros(2))}
    before = checksums(weight)
    weight["w"].data[0] = -0.0
    assert checksums(weight) != before


def test_nothing_to_sum() -> None:
    assert checksums({}) == {}


def test_counts(tiny_pipeline: Callable[..., Path]) -> None:
    folder = tiny_pipeline("flux")
    full = small_step(folder, "full").method
    num_base = sum(p.numel() for p in full.denoiser.parameters())
    assert num_trained_and_all(full) == (num_base, num_base)
    lora = small_step(folder, {"kind": "lora", "rank": 3}).method
    num_adapter = sum(p.numel() for name, p in lora.denoiser.named_parameters() if "lora_" in name)
    assert num_trained_and_all(lora) == (num_adapter, num_base + num_adapter)
