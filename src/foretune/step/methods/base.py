"""The interface of training methods."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from foretune.choices.method import Method
from foretune.models.family import Family
from foretune.step.precision import PrecisionPolicy


class AppliedMethod(ABC):
    """A method attached to one denoiser."""

    trains_base: ClassVar[bool]
    """Whether the base weights themselves are trained."""

    def __init__(self, choice: Method, family: Family, denoiser: nn.Module) -> None:
        self.choice, self.family, self.denoiser = choice, family, denoiser

    @classmethod
    def load_dtype(cls, policy: PrecisionPolicy) -> torch.dtype:
        """Returns the dtype in which the base weights are loaded."""
        return policy.trained_dtype if cls.trains_base else policy.frozen_dtype

    @abstractmethod
    def attach(self, seed: int, dtype: torch.dtype) -> None:
        """Adds the trained weights in this dtype and freezes the others.

        Random initial weights are a function of the seed. A trained base already has its dtype from loading.
        """

    @property
    def has_dropout(self) -> bool:
        """Whether a forward pass in training draws random numbers, for the method or for the model itself."""
        return has_dropout(self.denoiser)

    def trained(self) -> dict[str, nn.Parameter]:
        """Returns the trained parameters by name, in a fixed order."""
        return {name: p for name, p in self.denoiser.named_parameters() if p.requires_grad}

    def _freeze_without_gradient(self) -> None:
        for name, parameter in self.denoiser.named_parameters():
            if name.startswith(self.family.without_gradient()):
                parameter.requires_grad = False

    def frozen(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.denoiser.named_parameters() if not p.requires_grad}

    @torch.no_grad()
    def load_trained(self, weights: Mapping[str, Tensor]) -> None:
        """Loads saved weights; raises on a missing, unknown or misshapen tensor before it changes any."""
        own = self.trained()
        wrong = sorted(set(own) ^ set(weights)) or [n for n, p in own.items() if p.shape != weights[n].shape]
        assert not wrong, f"saved weights do not belong to this model: {wrong[:5]}"
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def has_dropout(model: nn.Module) -> bool:
    """Returns whether a forward pass in training draws random numbers."""
    return any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules())
