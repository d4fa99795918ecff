"""Builds the requested optimizer."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.util import find_spec

from torch import nn

from foretune.choices.optimizers import OPTIMIZER_SPECS
from foretune.choices.training import Levers, Optimizer
from foretune.core.errors import MissingExtra
from foretune.core.registry import Registry
from foretune.step.optimizers.base import OptimizerRequest, Updater
from foretune.step.optimizers.in_backward import InBackward
from foretune.step.optimizers.on_host import OnHost

OPTIMIZERS: Registry[Callable[[OptimizerRequest], Updater]] = Registry(
    "optimizer", {spec.name: spec.target for spec in OPTIMIZER_SPECS.values()}
)


def require_optimizer(choice: Optimizer) -> None:
    """Raises MissingExtra if the optimizer's library is not installed, without importing it."""
    library = choice.spec.library
    if library is not None and find_spec(library) is None:
        raise MissingExtra(f"optimizer.kind={choice.kind}", "optimizers")


def build_optimizer(
    choice: Optimizer,
    parameters: Iterable[nn.Parameter],
    *,
    foreach: bool | None = None,
    seed: int = 0,
    levers: Levers | None = None,
) -> Updater:
    """Builds the requested optimizer; its learning rate is set at each step."""
    require_optimizer(choice)
    build, levers = OPTIMIZERS[choice.kind], levers or Levers()

    asked = OptimizerRequest(
        choice=choice, weights=[], foreach=None if levers.optimizer_offload else foreach, seed=seed
    )

    def made(weights: list[nn.Parameter], first: int) -> Updater:
        if not levers.optimizer_offload:
            return build(replace(asked, weights=weights, first=first))
        return OnHost(weights, lambda copies: build(replace(asked, weights=copies, first=first)))

    if levers.fused_backward:
        return InBackward(parameters, lambda index, weight: made([weight], index))
    return made(list(parameters), 0)
