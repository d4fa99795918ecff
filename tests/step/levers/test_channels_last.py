"""Images pixel by pixel: weights and activations lie so, and the numbers stay the same but for rounding."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.step.levers.deep_steps import LORA, deep_step, difference, loss_and_gradients

TinyPipeline = Callable[..., Path]


@pytest.mark.parametrize("method", ["full", LORA])
@pytest.mark.parametrize("share", [0, 1])
def test_weights_and_activations_lie_so(method: Any, share: int, tiny_pipeline: TinyPipeline) -> None:
    levers = {"channels_last": True, "gradient_checkpointing": share}
    small = deep_step(tiny_pipeline("ddpm"), (), method, levers=levers)
    convolutions = [m for m in small.step.denoiser.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
    layouts: list[bool] = []
    for convolution in convolutions:
        assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
        convolution.register_forward_hook(
            lambda _, __, out: layouts.append(out.is_contiguous(memory_format=torch.channels_last))
        )
    found = loss_and_gradients(small)
    assert layouts == [True] * len(layouts)
    assert len(layouts) > len(convolutions) - 1
    loss_apart, gradients_apart = difference(found, loss_and_gradients(deep_step(tiny_pipeline("ddpm"), (), method)))
    assert loss_apart < 1e-6
    assert gradients_apart < 1e-5


def test_the_layout_survives_a_step(tiny_pipeline: TinyPipeline) -> None:
    small = deep_step(tiny_pipeline("ddpm"), (), "full", levers={"channels_last": True}, train={"ema": {}})
    loss_and_gradients(small)
    small.step.optimizer.step()
    for module in small.step.denoiser.modules():
        if isinstance(module, nn.Conv2d):
            assert module.weight.is_contiguous(memory_format=torch.channels_last)
