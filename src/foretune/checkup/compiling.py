"""torch.compile: a block, forward and backward, gives what it gives uncompiled."""

import torch
from torch import nn

from foretune.checkup.finding import Check


def _compiled_block(device: torch.device) -> str:
    from foretune.step.levers.compiling import apply_compile

    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(device)
    x = torch.randn(16, 32, device=device, requires_grad=True)
    plain = block(x)
    (before,) = torch.autograd.grad(plain.square().sum(), x)
    apply_compile((block,))
    out = block(x)
    (after,) = torch.autograd.grad(out.square().sum(), x)
    error = float((out - plain).abs().max().detach())
    assert error < 1e-3, f"{error:.2g} off the uncompiled block"  # noqa: PLR2004 - TF32 rounding stays below
    assert torch.allclose(before, after, atol=1e-2), "the gradients differ"
    return f"{error:.2g} off the uncompiled block"


CHECKS = (Check("compile", "compiled block", _compiled_block),)
