"""Optimizer offload: states and update are on the host; the device holds only weights and gradients."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from foretune.accelerator import page_locked
from foretune.accelerator.copies import computing_on_host, lasting_copies, to_host, wait_for_copies
from foretune.accelerator.copies import copy as copy_tensor
from foretune.step.optimizers.base import Form, Updater, like

MASTER = "master"
"""Name of the fp32 copy in a checkpoint, present if the weight itself is not fp32."""


class OnHost(Updater):
    """Stores an fp32 copy of each weight on the host. Gradients go there; the CPU updates the copy; the weight follows.

    bf16 weights lose nothing to rounding, because the copy holds the full precision.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], make: Callable[[list[nn.Parameter]], Updater]) -> None:
        parameters = list(parameters)
        super().__init__(parameters)
        with computing_on_host():
            self._copies = _copies_of(parameters)
            self.inner = make(list(self._copies.values()))

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        moved = [(weight, copy) for weight, copy in self._copies.items() if weight.grad is not None]
        if not moved:
            return
        with torch.no_grad(), computing_on_host():
            gradients = []
            for weight, _ in moved:
                assert weight.grad is not None
                gradients.append(to_host(weight.grad))
                weight.grad = None
            wait_for_copies(moved[0][0].device)
            for _, copy in moved:
                copy.grad = _widened(gradients.pop(0))
            self.inner.step()
            self.inner.zero_grad(set_to_none=True)
            for weight, copy in moved:
                copy_tensor(weight, _rounded(copy, weight))

    def set_lr(self, lr: float) -> None:
        self.inner.set_lr(lr)

    @torch.no_grad()
    def weights_replaced(self) -> None:
        for weight, copy in self._copies.items():
            copy.copy_(weight)

    def kept(self, weight: nn.Parameter) -> list[Tensor]:
        copy = self._copies[weight]
        return [copy, *self.inner.kept(copy)]

    def kept_once(self) -> list[Tensor]:
        return self.inner.kept_once()

    def forms(self, weight: nn.Parameter) -> dict[str, Form]:
        copy = self._copies[weight]
        master = {MASTER: like(copy)} if weight.dtype != copy.dtype else {}
        return {**self.inner.forms(copy), **master}

    def forms_once(self) -> dict[str, Form]:
        return self.inner.forms_once()

    def save(self, weight: nn.Parameter) -> dict[str, Tensor]:
        copy = self._copies[weight]
        saved = self.inner.save(copy)
        # An fp32 weight is its own copy.
        return {**saved, MASTER: copy.detach()} if saved and weight.dtype != copy.dtype else saved

    def save_once(self) -> dict[str, Tensor]:
        return self.inner.save_once()

    def load(self, weight: nn.Parameter, saved: Mapping[str, Tensor]) -> None:
        copy = self._copies[weight]
        if MASTER in saved:
            copy.data.copy_(saved[MASTER])
        self.inner.load(copy, saved)

    def load_once(self, saved: Mapping[str, Tensor]) -> None:
        self.inner.load_once(saved)

    def averaged(self, weight: nn.Parameter) -> Tensor | None:
        average = self.inner.averaged(self._copies[weight])
        return None if average is None else average.to(weight.device)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32)


def _copies_of(parameters: list[nn.Parameter]) -> dict[nn.Parameter, nn.Parameter]:
    """Returns an fp32 copy in host memory of each weight."""
    device = parameters[0].device
    stay = [weight for weight in parameters if weight.dtype == torch.float32]
    stored = {stay[index]: copy for index, copy in lasting_copies([weight.detach() for weight in stay], device)}
    others = {weight: to_host(weight.detach()) for weight in parameters if weight not in stored}
    # Widening reads the copies: before the wait they hold whatever was in the page-locked memory.
    wait_for_copies(device)
    return {
        weight: nn.Parameter(stored[weight] if weight in stored else _widened(others.pop(weight)))
        for weight in parameters
    }


def _rounded(copy: Tensor, weight: Tensor) -> Tensor:
    """Returns the copy in the weight's dtype, in memory from which the device copies while the host goes on."""
    if copy.dtype == weight.dtype or not page_locked.copies_in_background(weight.device):
        return copy.to(weight.dtype)
    return page_locked.empty_like(copy, weight.device, weight.dtype).copy_(copy)
