"""AdamW for bf16 weights with stochastic rounding, so that small updates count on average."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from foretune.core.draws import derive_seed

# A bf16 number is the upper half of an fp32 number.
_LOWER_HALF = 1 << 16


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW with bf16 weights and moments, computed in fp32 and rounded stochastically.

    A value between two bf16 numbers is rounded up with a probability proportional to its distance from the lower one,
    so its expectation is exact: an update of a thousandth of the distance takes effect once in a thousand steps. The
    moments are rounded in the same way; with rounding to nearest, the second moment could not fall by less than 1/512
    per step.

    The random bits are a function of seed, step and weight, so no generator state is stored. Tensors are updated one by
    one: temporaries take 16 bytes per element of the largest.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        seed: int,
        first: int = 0,
    ) -> None:
        """`first` is the index of the first of these weights among all trained weights."""
        super().__init__(list(parameters), {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._seed, self._first = seed, first
        self._generators: dict[torch.device, torch.Generator] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "the training step computes gradients before it updates"
        weights = [(weight, group) for group in self.param_groups for weight in group["params"]]
        for index, (weight, group) in enumerate(weights, start=self._first):
            if weight.grad is not None:
                self._update(index, weight, weight.grad, group)

    def _update(self, index: int, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        state = self._state_of(weight)
        state["step"] += 1
        num_steps = int(state["step"].item())
        bits = self._bits_for(weight, num_steps, index)
        gradient = gradient.float()
        square = _exact(state["exp_avg_sq"]).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        _round_into(state["exp_avg_sq"], square, bits)
        scale = square.sqrt_().div_(math.sqrt(1 - beta2**num_steps)).add_(group["eps"])
        mean = _exact(state["exp_avg"]).lerp_(gradient, 1 - beta1)
        del gradient
        _round_into(state["exp_avg"], mean, bits)
        exact = _exact(weight).mul_(1 - group["lr"] * group["weight_decay"])
        exact.addcdiv_(mean, scale, value=-group["lr"] / (1 - beta1**num_steps))
        del mean, scale, square
        _round_into(weight, exact, bits)

    def _state_of(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return state

    def _bits_for(self, weight: Tensor, num_steps: int, index: int) -> torch.Generator:
        device = weight.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device)
        return self._generators[device].manual_seed(derive_seed(self._seed, "rounding", num_steps, index))


def _exact(stored: Tensor) -> Tensor:
    """A copy in fp32 to compute with; also of what some models keep in fp32 among bf16 weights."""
    return stored.to(torch.float32, copy=True)


def _round_into(low: Tensor, exact: Tensor, bits: torch.Generator) -> None:
    """Adds random bits below bf16's precision, which may carry into the upper half, and cuts off the lower half.

    What is kept in fp32 needs no rounding.
    """
    if low.dtype == torch.float32:
        low.copy_(exact)
        return
    assert low.dtype == torch.bfloat16, "rounding by chance is for bf16"
    noise = torch.randint(_LOWER_HALF, exact.shape, dtype=torch.int32, device=exact.device, generator=bits)
    noise.add_(exact.view(torch.int32)).bitwise_and_(-_LOWER_HALF)
    low.copy_(noise.view(torch.float32))
