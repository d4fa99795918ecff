"""A moving average of the trained weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class MovingAverage:
    """average <- decay * average + (1 - decay) * weights, after each optimizer step."""

    def __init__(self, weights: Mapping[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self._weights = dict(weights)
        self.average = {name: weight.detach().clone() for name, weight in weights.items()}

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(list(self.average.values()), list(self._weights.values()), 1 - self.decay)

    @torch.no_grad()
    def load(self, average: Mapping[str, Tensor]) -> None:
        assert set(average) == set(self.average), "a saved average belongs to other weights"
        for name, tensor in self.average.items():
            tensor.copy_(average[name])
