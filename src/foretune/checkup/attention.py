"""Every kernel that can compute attention, forward and backward, against the plain formula."""

from collections.abc import Callable

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from foretune.checkup.finding import Check

_MOST_ERROR = 1e-2
"""TF32 and 16-bit rounding stay below."""


def _attention(device: torch.device) -> str:
    return _compared(device, torch.float32)


def _by_kernel(backend: SDPBackend) -> Callable[[torch.device], str]:
    def run(device: torch.device) -> str:
        # On GPUs the fused kernels are for 16-bit numbers.
        dtype = torch.float32 if device.type == "cpu" or backend == SDPBackend.MATH else torch.bfloat16
        with sdpa_kernel(backend):
            return _compared(device, dtype)

    return run


def _compared(device: torch.device, dtype: torch.dtype) -> str:
    torch.manual_seed(0)
    q = torch.randn(2, 4, 64, 32, device=device).to(dtype).requires_grad_()
    out = functional.scaled_dot_product_attention(q, q, q)
    out.float().sum().backward()
    assert q.grad is not None, "no gradient came back"
    assert bool(q.grad.isfinite().all()), "the gradient is not finite"
    wide = q.detach().float()
    weights = torch.softmax(wide @ wide.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
    error = float((out.float() - weights @ wide).abs().max().detach())
    limit = _MOST_ERROR if dtype == torch.float32 else 5 * _MOST_ERROR
    assert error < limit, f"{error:.2g} off the plain formula"
    return f"{error:.2g} off the plain formula"


CHECKS = (
    Check("attention", "attention", _attention, needed=True),
    Check("attention", "attention kernel math", _by_kernel(SDPBackend.MATH)),
    Check("attention", "attention kernel flash", _by_kernel(SDPBackend.FLASH_ATTENTION)),
    Check(
        "attention", "attention kernel efficient", _by_kernel(SDPBackend.EFFICIENT_ATTENTION), device_types=("cuda",)
    ),
    Check("attention", "attention kernel cudnn", _by_kernel(SDPBackend.CUDNN_ATTENTION), device_types=("cuda",)),
)
