"""Exponential moving average (EMA) of the trained weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from foretune.accelerator.copies import CopiesIssued, computing_on_host, to_host, wait_for_copies
from foretune.choices.memory_pieces import averaged_group_bytes
from foretune.step.engine import sharded_like


class MovingAverage:
    """average <- decay * average + (1 - decay) * weights, after each optimizer step.

    The average is always fp32, because it moves by far less than bf16 can represent. On the host it takes no device
    memory; the weights are copied there in groups.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], decay: float, *, on_host: bool = False) -> None:
        self.decay = decay
        self.on_host = on_host
        self._weights = dict(weights)
        self.average = {name: self._started(weight) for name, weight in weights.items()}
        self._groups = _groups({name: weight.numel() * weight.element_size() for name, weight in weights.items()})

    @torch.no_grad()
    def update(self) -> None:
        averages = list(self.average.values())
        weights: list[Tensor] = list(self._weights.values())
        if self.on_host:
            with computing_on_host():
                self._update_on_host()
            return
        if all(weight.dtype == torch.float32 for weight in weights):
            torch._foreach_lerp_(averages, weights, 1 - self.decay)
            return
        # One by one, so that the fp32 copies of all weights never exist at the same time.
        for average, weight in zip(averages, weights, strict=True):
            average.lerp_(weight.float(), 1 - self.decay)

    def _update_on_host(self) -> None:
        """Averages a group of weights while the next one is copied, so that the device rarely waits for the host."""
        copied: list[tuple[list[Tensor], list[Tensor], CopiesIssued]] = []
        for names in self._groups:
            weights = [self._weights[name].detach() for name in names]
            averages = [self.average[name] for name in names]
            copied.append((averages, [to_host(weight) for weight in weights], CopiesIssued(weights[0].device)))
            if len(copied) > 1:
                self._average(*copied.pop(0))
        for group in copied:
            self._average(*group)

    def _average(self, averages: list[Tensor], copies: list[Tensor], issued: CopiesIssued) -> None:
        issued.wait()
        for average in averages:
            average.lerp_(copies.pop(0).to(torch.float32), 1 - self.decay)

    @torch.no_grad()
    def load(self, average: Mapping[str, Tensor]) -> None:
        assert set(average) == set(self.average), "a saved average belongs to other weights"
        for name, tensor in self.average.items():
            tensor.copy_(sharded_like(average[name], tensor))

    def _started(self, weight: Tensor) -> Tensor:
        copy = self._copied(weight)
        if not self.on_host:
            return copy
        with computing_on_host():
            return copy.clone()  # the copy from `to_host` is pinned, which is only needed during the transfer

    def _copied(self, weight: Tensor) -> Tensor:
        if not self.on_host:
            return weight.detach().to(torch.float32, copy=True)
        with computing_on_host():
            copy = to_host(weight.detach())
            wait_for_copies(weight.device)
            return copy.to(torch.float32)


def _groups(sizes: Mapping[str, int]) -> list[list[str]]:
    """Splits the weights, in order, into groups that reach the size of a group."""
    wanted_bytes, filled_bytes = averaged_group_bytes(sum(sizes.values())), 0
    groups: list[list[str]] = []
    for name, num_bytes in sizes.items():
        if not groups or filled_bytes >= wanted_bytes:
            groups.append([])
            filled_bytes = 0
        groups[-1].append(name)
        filled_bytes += num_bytes
    return groups
