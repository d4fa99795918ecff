"""The moving average by hand, alone and inside a step."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from foretune.step.ema import MovingAverage
from tests.step.small_steps import made_batch, small_step


def test_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    ema = MovingAverage({"w": weight}, decay=0.75)
    assert ema.average["w"].tolist() == [1.0, -2.0]
    for value, expected in (([5.0, 2.0], [2.0, -1.0]), ([10.0, 3.0], [4.0, 0.0])):
        weight.data = torch.tensor(value)
        ema.update()
        assert ema.average["w"].tolist() == pytest.approx(expected)
        assert weight.tolist() == value


def test_bf16_weights_have_an_fp32_average() -> None:
    """Its steps are too small for bf16: an average in it would stand still."""
    weights = {"w": nn.Parameter(torch.ones(1, dtype=torch.bfloat16)), "v": nn.Parameter(torch.ones(1))}
    ema = MovingAverage(weights, decay=0.999)
    weights["w"].data += 0.5
    weights["v"].data += 0.5
    ema.update()
    assert [average.dtype for average in ema.average.values()] == [torch.float32] * 2
    assert [float(average) for average in ema.average.values()] == pytest.approx([1.0005, 1.0005])


def test_it_is_a_copy_and_needs_no_gradient() -> None:
    weight = nn.Parameter(torch.ones(2))
    ema = MovingAverage({"w": weight}, decay=0.9)
    weight.data.zero_()
    assert ema.average["w"].tolist() == [1.0, 1.0]
    assert not ema.average["w"].requires_grad


def test_saved_average_is_put_back_and_a_strange_one_refused() -> None:
    ema = MovingAverage({"w": nn.Parameter(torch.ones(2))}, decay=0.9)
    ema.load({"w": torch.tensor([3.0, 4.0])})
    assert ema.average["w"].tolist() == [3.0, 4.0]
    with pytest.raises(AssertionError, match="other weights"):
        ema.load({"v": torch.ones(2)})


def test_a_step_updates_it_once_however_many_batches(tiny_pipeline: Callable[..., Path]) -> None:
    small = small_step(tiny_pipeline("flux"), {"kind": "lora", "rank": 2}, train={"ema": {"decay": 0.9}})
    ema = small.step.ema
    assert ema is not None
    expected = {name: average.clone() for name, average in ema.average.items()}
    for index in range(3):
        batches = [made_batch(small.family, 1, seed=10 * index + micro) for micro in range(2)]
        small.step(index, 1e-2, batches, 2)
        for name, weight in small.step.trained.items():
            expected[name] = 0.9 * expected[name] + 0.1 * weight.detach()
            torch.testing.assert_close(ema.average[name], expected[name])
    assert any(not torch.equal(ema.average[name], weight) for name, weight in small.step.trained.items())


def test_none_unless_asked_for(tiny_pipeline: Callable[..., Path]) -> None:
    assert small_step(tiny_pipeline("flux")).step.ema is None
