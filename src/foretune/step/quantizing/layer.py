"""A linear layer with a quantised frozen weight."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretune.step.quantizing.compute_type import in_compute_type

Bits = Mapping[str, Tensor]
"""The tensors of a quantised weight, by name."""


class QuantizedLinear(nn.Linear):
    """Stores the quantised weight and makes a dense copy for each product, freed right after it.

    Libraries that leave this to autograd hold every dense copy until the backward pass, which takes more memory than an
    unquantised base. Here the backward pass makes the copy again. The quantised tensors are ordinary frozen parameters,
    so code that moves, counts, traces or checks weights needs no special case.
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
        """Whether the backend supports a layer of this size."""
        return True

    @classmethod
    def of(cls, dense: nn.Linear) -> Self:
        """Quantises a layer on its device."""
        return cls(dense, cls.quantised(dense.weight.detach()))

    @staticmethod
    @abstractmethod
    def quantised(weight: Tensor) -> dict[str, Tensor]:
        """Returns the tensors of the quantised weight, by their names in the layer."""

    @abstractmethod
    def dense(self, bits: Bits, dtype: torch.dtype) -> Tensor:
        """Returns the dequantised weight for a product."""

    def product(self, values: Tensor) -> Tensor:
        """Returns the layer's output, without autograd."""
        bias = None if self.bias is None else self.bias.to(values.dtype)
        return F.linear(values, self.dense(self.bits(), values.dtype), bias)

    def forward(self, values: Tensor) -> Tensor:
        bits = self.bits().values()
        out: Tensor = _Product.apply(in_compute_type(values), self, *bits)  # type: ignore[no-untyped-call]
        return out

    def bits(self) -> dict[str, Tensor]:
        """Returns the layer's current tensors of the quantised weight."""
        return {name: tensor for name, tensor in self._parameters.items() if name != "bias" and tensor is not None}

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A dense copy of the weight, made at each access."""
        return self.dense(self.bits(), self.dense_dtype)

    @property
    def num_weights(self) -> int:
        """The number of weights before quantisation, including the bias."""
        return self.in_features * self.out_features + (0 if self.bias is None else self.bias.numel())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves with the model, but does not change the dtype of quantised tensors and their scales."""

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return found if tensor is self.bias or found.dtype == tensor.dtype else tensor.to(found.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self


class _Product(torch.autograd.Function):
    """Saves the quantised tensors, which exist anyway, and neither the input nor a dense weight.

    It saves those of its forward pass: with block swap, the layer's own may be on the host in the backward pass.
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
