"""AdamW for bf16 weights that keeps what rounding takes from each update."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class KahanAdamW(torch.optim.Optimizer):
    """AdamW with a third state, the shift: what each weight still lacks of the sum of its updates.

    An update goes to the shift, the shift to the weight, and what the weight could not take goes back to the shift
    (Kahan's compensated sum). Weight and shift together have 16 significant bits in bf16, so an update counts down to
    about 1/65,000 of its weight instead of 1/256.

    Both averages and the shift have the weight's type. Tensors are updated one after another: temporaries are as large
    as the largest of them. All at once would be faster for many small ones, but would take 2 more bytes a weight, and
    bf16 weights are chosen to save bytes.
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
    # Both averages begin at zero; dividing by what they have seen of the gradients takes that out.
    scratch = square.sqrt().div_(math.sqrt(1 - beta2**num_steps)).add_(group["eps"])
    shift.addcdiv_(mean, scratch, value=-group["lr"] / (1 - beta1**num_steps))
    shift.add_(weight, alpha=-group["lr"] * group["weight_decay"])
    scratch.copy_(weight)
    weight.add_(shift)
    shift.add_(scratch.sub_(weight))
