"""Operators that a GPU has and a CPU has not."""

from typing import Any

import pytest

pytestmark = pytest.mark.simulated


def test_softmax_from_fp16_to_fp32(simulated_gpu: Any) -> None:
    import torch

    generator = torch.Generator().manual_seed(0)
    numbers, gradient = (torch.randn(4, 16, generator=generator) for _ in range(2))
    on_device = numbers.half().cuda().requires_grad_()
    widened = numbers.half().float().requires_grad_()
    out = torch.softmax(on_device, -1, dtype=torch.float32)
    out.backward(gradient.cuda())
    expected = torch.softmax(widened, -1)
    expected.backward(gradient)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.cpu(), expected)
    assert on_device.grad is not None
    assert widened.grad is not None
    torch.testing.assert_close(on_device.grad.cpu(), widened.grad.half())
