"""Every quantisation that can be asked for: a layer of it, forward and backward, against the dense layer."""

from collections.abc import Callable
from typing import get_args

import torch
from torch import nn

from foretune.checkup.finding import Check
from foretune.choices.quantize import DenoiserNumbers

_MOST_ERROR = {"nf4": 0.25}
_MOST_ERROR_OF_8_BITS = 0.1


def _layer(kind: str) -> Callable[[torch.device], str]:
    def run(device: torch.device) -> str:
        from foretune.choices.quantize import Quantize
        from foretune.step.quantizing.applying import BACKENDS, check_quantization

        check_quantization(Quantize.model_validate({"denoiser": kind}), device)
        torch.manual_seed(0)
        # 16-bit weights and values: with others most backends have nothing to do here.
        dense = nn.Linear(128, 64, dtype=torch.bfloat16).requires_grad_(requires_grad=False).to(device)
        x = torch.randn(32, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
        exact = dense(x).detach().float()
        layer = BACKENDS[kind].of(dense)
        out = layer(x)
        out.float().sum().backward()
        assert x.grad is not None, "no gradient went through"
        error = float((out.detach().float() - exact).norm() / exact.norm())
        limit = _MOST_ERROR.get(kind, _MOST_ERROR_OF_8_BITS)
        assert error < limit, f"{error:.1%} off the dense layer"
        return f"{error:.2%} off the dense layer"

    return run


CHECKS = tuple(
    Check("quantisation", f"quantised layer {kind}", _layer(kind))
    for kind in get_args(DenoiserNumbers)
    if kind != "none"
)
