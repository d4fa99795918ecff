"""The optimizer, and the learning rate as a pure function of the step."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from foretune.choices.training import Optimizer
from foretune.step.compensated import KahanAdamW

_ADAMW_STATES = ("exp_avg", "exp_avg_sq", "step")


def build_optimizer(
    choice: Optimizer, parameters: Iterable[nn.Parameter], *, foreach: bool | None = None
) -> torch.optim.Optimizer:
    """The optimizer that was asked for; its learning rate is set anew at each step."""
    if choice.compensation == "kahan":
        return KahanAdamW(
            parameters, lr=choice.lr, betas=choice.betas, eps=choice.eps, weight_decay=choice.weight_decay
        )
    return torch.optim.AdamW(
        list(parameters),
        lr=choice.lr,
        betas=choice.betas,
        eps=choice.eps,
        weight_decay=choice.weight_decay,
        foreach=foreach,
    )


def state_names(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """What an optimizer remembers of each weight it has updated; `step` is one fp32 number, the others are tensors of
    the weight's shape and type.
    """
    return (*_ADAMW_STATES, "shift") if isinstance(optimizer, KahanAdamW) else _ADAMW_STATES


def learning_rate(choice: Optimizer, step: int, num_steps: int) -> float:
    """The rate of step 0, 1, ...: warmed up linearly, then kept or brought down, to zero after the last step."""
    if step < choice.warmup_steps:
        return choice.lr * (step + 1) / choice.warmup_steps
    if choice.schedule == "constant":
        return choice.lr
    progress = min(1.0, (step - choice.warmup_steps) / max(1, num_steps - choice.warmup_steps))
    if choice.schedule == "linear":
        return choice.lr * (1 - progress)
    return choice.lr * 0.5 * (1 + math.cos(math.pi * progress))
