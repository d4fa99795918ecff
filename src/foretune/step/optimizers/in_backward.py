"""Updates each weight during the backward pass, as soon as its gradient is complete."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, nn

from foretune.step.optimizers.base import Form, Updater


class InBackward(Updater):
    """Runs one updater per weight when its gradient is complete, and frees the gradient at once.

    State that an updater normally shares between its weights exists here once per weight.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], make: Callable[[int, nn.Parameter], Updater]) -> None:
        """`make` builds an updater from a weight's index and the weight."""
        parameters = list(parameters)
        super().__init__(parameters)
        self.updaters = {weight: make(index, weight) for index, weight in enumerate(parameters)}
        # A weight's hook is out of the garbage collector's sight: a cycle through it would never be freed.
        arrived = WeakMethod(self._arrived)

        def update(weight: Tensor) -> None:
            arrive = arrived()
            assert arrive is not None, "the step holds its optimizer"
            arrive(weight)

        for weight in parameters:
            weight.register_post_accumulate_grad_hook(update)

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Does nothing: the backward pass has updated all weights."""
        for weight in self.updaters:
            if weight.grad is not None:
                self._arrived(weight)

    def set_lr(self, lr: float) -> None:
        for updater in self.updaters.values():
            updater.set_lr(lr)

    def weights_replaced(self) -> None:
        for updater in self.updaters.values():
            updater.weights_replaced()

    def kept(self, weight: nn.Parameter) -> list[Tensor]:
        return self.updaters[weight].kept(weight)

    def kept_once(self) -> list[Tensor]:
        return list({id(t): t for updater in self.updaters.values() for t in updater.kept_once()}.values())

    def forms(self, weight: nn.Parameter) -> dict[str, Form]:
        updater = self.updaters[weight]
        return {**updater.forms(weight), **updater.forms_once()}

    def forms_once(self) -> dict[str, Form]:
        return {}

    def save(self, weight: nn.Parameter) -> dict[str, Tensor]:
        updater = self.updaters[weight]
        return {**updater.save(weight), **updater.save_once()}

    def save_once(self) -> dict[str, Tensor]:
        return {}

    def load(self, weight: nn.Parameter, saved: Mapping[str, Tensor]) -> None:
        updater = self.updaters[weight]
        updater.load(weight, saved)
        updater.load_once(saved)

    def load_once(self, saved: Mapping[str, Tensor]) -> None:
        assert not saved, "everything is kept of single weights"

    def averaged(self, weight: nn.Parameter) -> Tensor | None:
        return self.updaters[weight].averaged(weight)

    @torch.no_grad()
    def _arrived(self, weight: Tensor) -> None:
        assert isinstance(weight, nn.Parameter)
        self.updaters[weight].step()
        weight.grad = None
