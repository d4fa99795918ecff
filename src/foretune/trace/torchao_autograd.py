"""8-bit weights with torchao's own operators and autograd, as other trainers use them: for recordings of their steps.

They save more for the backward pass than `step.quantizing` does: a dense copy of each weight, or four copies of each
input.
"""

from typing import Any

import torch
from torch import Tensor

from foretune.step.quantizing import torchao_weights as lean
from foretune.step.quantizing.float8_products import LARGEST, scaled_product


class AutogradInt8Linear(lean.Int8Linear):
    """Saves the integers in the compute dtype; the scale is applied to the product."""

    def forward(self, values: Tensor) -> Tensor:
        sums = torch.mm(values.reshape(-1, self.in_features), self.numbers.t().to(values.dtype))
        out = (sums * self.scale.to(sums.dtype).flatten()).reshape(*values.shape[:-1], self.out_features)
        if self.bias is not None:
            out += self.bias
        return out.to(values.dtype)


class AutogradFloat8Linear(lean.Float8Linear):
    """Saves the dense weight, which is computed through two fp32 copies."""

    def forward(self, values: Tensor) -> Tensor:
        out = torch.matmul(values, _widened(self.numbers.t(), self.scale.t(), self.dense_dtype))
        return out if self.bias is None else out + self.bias


class AutogradDynamicFloat8Linear(lean.DynamicFloat8Linear):
    """Saves the input, its absolute values, and its fp32 copy before and after scaling.

    Autocast does not apply to it: the output has the input's dtype.
    """

    def forward(self, values: Tensor) -> Tensor:
        largest = values.reshape(-1, self.in_features).abs().amax(dim=(0, 1), keepdim=True)
        scale = (largest / LARGEST).to(torch.float32)
        if scale.requires_grad:
            # Division and multiplication by the scale cancel out; autograd cannot see this in the product below.
            scale.register_hook(torch.zeros_like)
        rows = (values.reshape(-1, self.in_features).to(torch.float32) / scale).clamp(-LARGEST, LARGEST)
        out: Tensor = _RoundedProduct.apply(rows, scale, self, values.dtype)  # type: ignore[no-untyped-call]
        if self.bias is not None and values.dtype == torch.float32:
            out = out + self.bias  # the kernel adds no bias to fp32 sums
        return out.reshape(*values.shape[:-1], self.out_features)


class _RoundedProduct(torch.autograd.Function):
    """Passes the gradient through rounding unchanged. Includes the product, so that no gradient is rounded."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, scale: Tensor, layer: AutogradDynamicFloat8Linear, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(scale, layer.numbers, layer.scale)
        bias = None if dtype == torch.float32 else layer.bias
        return scaled_product(rows.to(torch.float8_e4m3fn), layer.numbers.t(), scale, layer.scale, dtype, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        scale, numbers, weight_scale = ctx.saved_tensors
        dense = _widened(numbers, weight_scale, gradient.dtype)
        return (gradient @ dense) * scale.to(gradient.dtype), None, None, None


def _widened(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    wide = numbers.to(torch.float32)
    return (wide * scale).to(dtype)
