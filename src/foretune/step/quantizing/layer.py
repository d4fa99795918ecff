"""A linear layer whose frozen weight is kept in fewer bits."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretune.step.quantizing.compute_type import in_compute_type

Bits = Mapping[str, Tensor]
"""The tensors that stand for a weight, by name."""


class QuantizedLinear(nn.Linear):
    """Keeps the bits and makes a dense copy of the weight for each product; the copy is gone when the product is there.

    Libraries that leave this to autograd keep every dense copy until the backward pass, which is more than an
    unquantised base takes. Here nothing is kept: the backward pass makes the copy again. The bits are ordinary frozen
    parameters, so that whoever moves, counts, traces or checks weights needs to know nothing of them.
    """

    bias: nn.Parameter | None  # type: ignore[assignment]

    def __init__(self, dense: nn.Linear, bits: Bits) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = dense.in_features, dense.out_features
        self.dense_dtype = dense.weight.dtype
        self.register_parameter("bias", dense.bias)
        for name, tensor in bits.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    @classmethod
    def takes(cls, num_inputs: int, num_outputs: int) -> bool:  # noqa: ARG003 - most take any
        """Whether the backend can do a layer of this size."""
        return True

    @classmethod
    def of(cls, dense: nn.Linear, device: torch.device | None = None) -> Self:
        """Quantises a layer on the device, or where it is, and leaves the bits where the weight was."""
        weight = dense.weight.detach()
        bits = cls.quantised(weight if device is None or weight.is_meta else weight.to(device))
        return cls(dense, {name: tensor.to(weight.device) for name, tensor in bits.items()})

    @staticmethod
    @abstractmethod
    def quantised(weight: Tensor) -> dict[str, Tensor]:
        """The tensors that stand for a weight, by the names they have in the layer."""

    @abstractmethod
    def dense(self, bits: Bits, dtype: torch.dtype) -> Tensor:
        """The weight that the bits stand for, as it is multiplied with."""

    def product(self, values: Tensor) -> Tensor:
        """What the layer answers; no gradient is followed through it."""
        bias = None if self.bias is None else self.bias.to(values.dtype)
        return F.linear(values, self.dense(self.bits(), values.dtype), bias)

    def forward(self, values: Tensor) -> Tensor:
        bits = self.bits().values()
        out: Tensor = _Product.apply(in_compute_type(values), self, *bits)  # type: ignore[no-untyped-call]
        return out

    def bits(self) -> dict[str, Tensor]:
        """The tensors that stand for the weight, as the layer has them now."""
        return {name: tensor for name, tensor in self._parameters.items() if name != "bias" and tensor is not None}

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A dense copy, for those who ask; made anew each time."""
        return self.dense(self.bits(), self.dense_dtype)

    @property
    def num_weights(self) -> int:
        """Weights that the bits stand for, the bias included."""
        return self.in_features * self.out_features + (0 if self.bias is None else self.bias.numel())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves with the model, but bits and their scales stay what they are when its other weights change type."""

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return found if tensor is self.bias or found.dtype == tensor.dtype else tensor.to(found.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self


class _Product(torch.autograd.Function):
    """Keeps the bits, which are there anyhow, and neither its input nor a dense weight.

    It keeps those of its forward pass: the layer's own may be on the host again when the backward pass comes.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, layer: QuantizedLinear, *bits: Tensor) -> Tensor:
        ctx.layer, ctx.names = layer, tuple(layer.bits())
        ctx.save_for_backward(*bits)
        return layer.product(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        bits = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        return (gradient @ ctx.layer.dense(bits, gradient.dtype), None, *(None for _ in bits))
