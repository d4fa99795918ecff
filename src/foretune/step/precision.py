"""Which numbers are used where."""

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
    """Trained weights, their gradients and the optimizer's states are fp32, or bf16 where that was asked for.

    Matrix products run in the compute type under autocast; frozen weights are kept in it, which halves them.
    """

    name: Precision
    weights: WeightNumbers = "fp32"

    @classmethod
    def of(cls, train: Train) -> "PrecisionPolicy":
        """What a training was asked to use."""
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
        """How GPUs multiply fp32 numbers meanwhile: in full, or with 10 bits of them. Elsewhere it changes nothing.

        Left to torch, matrix products are in full and convolutions are not.
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
