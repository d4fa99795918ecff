"""How long the host takes for an operator on devices that were not measured, by who issues it.

One number is learnt from published speeds, `TimeConstants.host`; it multiplies all of these. They are not fitted again
when traces change: those that were measured rest on other programs than the published rows, and those that were chosen
after errors of these rows were seen say so.
"""

from typing import Literal

Issuer = Literal["modules", "autograd", "optimizer"]
"""modules: Python of the model, forward and again where blocks are recomputed. autograd: PyTorch's backward pass, which
runs in C++. optimizer: a loop over tensors without autograd."""

HOST_S_PER_OPERATOR = 6e-6
"""One operator of eager PyTorch with autograd: 5 to 7 us on server processors, from general knowledge.
`foretune calibrate` measures it.
"""
AUTOGRAD_OPERATOR = 0.55
"""Over an operator of the model's modules. Measured on a CPU with one thread and tiny models with LoRA of rank 4, whose
kernels take no time: SD3's transformer 15.0 us forward and 8.6 backward, a UNet 20.6 and 10.8."""
OPTIMIZER_OPERATOR = 0.22
"""Likewise: 3.8 us for an operator that changes a small tensor in place."""
EIGHT_BIT_PRODUCT = 34
"""A product of two of torchao's quantised tensors, in operators of modules: it is dispatched in Python. Chosen after
errors of published rows were seen, as 48 operators of all kinds; these take 0.72 of one of modules. Layers of
this project's own trainer have none of it.
"""


def over_a_module_operator(issued_by: Issuer) -> float:
    """Returns the time of an operator over one that a module issues."""
    return {"modules": 1.0, "autograd": AUTOGRAD_OPERATOR, "optimizer": OPTIMIZER_OPERATOR}[issued_by]
