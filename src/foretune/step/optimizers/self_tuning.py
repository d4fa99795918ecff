"""Optimizers of pytorch-optimizer that need no learning rate, or no schedule for it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from foretune.step.optimizers.base import COUNT, REAL, Direct, Form, Layout, OptimizerRequest, Updater, like

BASE = "z"
"""Name in a checkpoint of schedule-free's base point."""


def prodigy(asked: OptimizerRequest) -> Updater:
    """Builds Prodigy with bias correction and safe warm-up, as the training scripts of diffusers do."""
    inner = _library().Prodigy(
        asked.weights, **asked.common(), bias_correction=True, safeguard_warmup=True, foreach=asked.foreach
    )
    distance = {"step": COUNT, "d": REAL, "d_max": REAL, "d_numerator": Form((1,), torch.float32)}
    return Direct(inner, Layout(of_weight=_with_start, of_all=distance))


def schedule_free(asked: OptimizerRequest) -> Updater:
    """Builds the schedule-free optimizer without the library's warm-up: each step's learning rate includes one."""
    foreach = asked.foreach
    if foreach is None:
        # The library would use foreach on a CPU too, with temporaries of 8 bytes per weight.
        foreach = any(weight.device.type == "cuda" for weight in asked.weights)
    inner = _library().ScheduleFreeAdamW(asked.weights, **asked.common(), foreach=foreach)
    sums = {"step": COUNT, "weight_sum": REAL, "lr_max": REAL}
    return Direct(inner, Layout(of_weight=_with_base, of_all=sums, average=_average))


def average_of(weight: Tensor, base: Tensor, beta1: float) -> Tensor:
    """Returns the average, which is used outside training: the trained weight lies between it and the base point."""
    return torch.lerp(weight, base, 1 - 1 / beta1)


def _average(weight: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    return average_of(weight, state[BASE], group["betas"][0])


def _library() -> Any:
    import pytorch_optimizer

    return pytorch_optimizer


def _with_start(weight: Tensor) -> dict[str, Form]:
    return {name: like(weight) for name in ("s", "p0", "exp_avg", "exp_avg_sq")}


def _with_base(weight: Tensor) -> dict[str, Form]:
    return {name: like(weight) for name in (BASE, "exp_avg_sq")}
