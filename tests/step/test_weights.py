"""Checksums that notice any change, and counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from foretune.step import weights as weights_module
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


class _Converted(TorchDispatchMode):
    """Notes how many numbers each sum in a wider type is over: torch converts them all before it adds them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.sum.default and result.dtype != args[0].dtype:
            self.sizes.append(args[0].numel())
        return result


def test_no_more_than_a_part_of_a_weight_is_converted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights may fill the device, and eight bytes for each number of the largest one would not fit beside them."""
    weight = {"w": nn.Parameter(torch.randn(33, 31, dtype=torch.bfloat16))}
    whole = checksums(weight)
    monkeypatch.setattr(weights_module, "SUMMED_AT_ONCE", 256)
    with _Converted() as converted:
        assert checksums(weight) == whole
    assert converted.sizes == [256, 256, 256, 33 * 31 - 3 * 256]


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
