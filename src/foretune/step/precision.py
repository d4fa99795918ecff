"""Which numbers are used where."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from foretune.choices.training import Precision, Train, WeightNumbers

_COMPUTE_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class PrecisionPolicy:
    """Trained weights, their gradients and the optimizer's states are fp32, or bf16 where that was asked for.

    Matrix products run in the compute type under autocast; frozen weights are kept in it, which halves them.
    """

    name: Precision
    weights: WeightNumbers = "fp32"

    @classmethod
    def of(cls, train: Train) -> "PrecisionPolicy":
        """What a training was asked to use."""
        return cls(train.precision, train.weights)

    @property
    def compute_dtype(self) -> torch.dtype:
        return _COMPUTE_DTYPES[self.name]

    @property
    def frozen_dtype(self) -> torch.dtype:
        return self.compute_dtype

    @property
    def trained_dtype(self) -> torch.dtype:
        return _COMPUTE_DTYPES[self.weights]

    @property
    def needs_loss_scaling(self) -> bool:
        return self.name == "fp16"

    def autocast(self, device_type: str) -> AbstractContextManager[object]:
        if self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device_type, dtype=self.compute_dtype)
