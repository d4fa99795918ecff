"""A moving average of the trained weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class MovingAverage:
    """average <- decay * average + (1 - decay) * weights, after each optimizer step.

    It is fp32 whatever the weights are: an average moves by far less than bf16 can tell.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self._weights = dict(weights)
        self.average = {name: weight.detach().to(torch.float32, copy=True) for name, weight in weights.items()}

    @torch.no_grad()
    def update(self) -> None:
        averages = list(self.average.values())
        weights: list[Tensor] = list(self._weights.values())
        if all(weight.dtype == torch.float32 for weight in weights):
            torch._foreach_lerp_(averages, weights, 1 - self.decay)
            return
        # One by one, so that the fp32 copies of the weights are never there all at once.
        for average, weight in zip(averages, weights, strict=True):
            average.lerp_(weight.float(), 1 - self.decay)

    @torch.no_grad()
    def load(self, average: Mapping[str, Tensor]) -> None:
        assert set(average) == set(self.average), "a saved average belongs to other weights"
        for name, tensor in self.average.items():
            tensor.copy_(average[name])
