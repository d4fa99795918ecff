"""AdamW for bf16 weights with Kahan summation: keeps what rounding removes from each update."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class KahanAdamW(torch.optim.Optimizer):
    """AdamW with a third state, the shift: the part of a weight's updates that rounding has held back so far.

    An update is added to the shift, the shift to the weight, and what the weight could not represent goes back to the
    shift (Kahan summation). Weight and shift together have 16 significant bits in bf16, so an update counts down to
    about 1/65,000 of its weight instead of 1/256.

    Both moments and the shift have the weight's dtype. Tensors are updated one by one, so temporaries are as large as
    the largest tensor. A foreach update would be faster for many small tensors but takes 2 more bytes per weight, and
    users choose bf16 weights to save bytes.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(list(parameters), defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "the training step computes gradients before it updates"
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    _update(weight, weight.grad, self._state_of(weight), group)

    def _state_of(self, weight: nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            for name in ("exp_avg", "exp_avg_sq", "shift"):
                state[name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return state


def _update(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    mean, square, shift = state["exp_avg"], state["exp_avg_sq"], state["shift"]
    state["step"] += 1
    num_steps = state["step"].item()
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    # Bias correction: both moments start at zero.
    scratch = square.sqrt().div_(math.sqrt(1 - beta2**num_steps)).add_(group["eps"])
    shift.addcdiv_(mean, scratch, value=-group["lr"] / (1 - beta1**num_steps))
    shift.add_(weight, alpha=-group["lr"] * group["weight_decay"])
    scratch.copy_(weight)
    weight.add_(shift)
    shift.add_(scratch.sub_(weight))
