"""Dtypes of weights, gradients, optimizer states and matrix products."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from foretune.choices.training import Precision, Train, WeightNumbers

_COMPUTE_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class PrecisionPolicy:
    """Trained weights, their gradients and the optimizer's states are fp32, or bf16 if requested.

    Matrix products run in the compute dtype under autocast. Frozen weights are stored in it, which halves their memory.
    """

    name: Precision
    weights: WeightNumbers = "fp32"

    @classmethod
    def of(cls, train: Train) -> "PrecisionPolicy":
        """Returns the dtypes that an experiment requests."""
        return cls(train.precision, train.weight_dtype)

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

    def products(self) -> AbstractContextManager[object]:
        """Sets how GPUs multiply fp32 tensors in this context: in full precision or in TF32. No effect elsewhere.

        By default torch uses full precision for matrix products and TF32 for convolutions.
        """
        if self.name not in ("fp32", "tf32"):
            return nullcontext()
        return _tf32_products(allowed=self.name == "tf32")

    def autocast(self, device_type: str) -> AbstractContextManager[object]:
        if self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device_type, dtype=self.compute_dtype)


@contextmanager
def _tf32_products(*, allowed: bool) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
