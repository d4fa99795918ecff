"""8-bit weights with torchao's own operators and autograd, as other trainers use them: for recordings of their steps.

They keep more for the backward pass than `step.quantizing` does: a dense copy of each weight, or four copies of each
input.
"""

from typing import Any

import torch
from torch import Tensor

from foretune.step.quantizing import torchao_weights as lean
from foretune.step.quantizing.float8_products import LARGEST, scaled_product


class AutogradInt8Linear(lean.Int8Linear):
    """Keeps the integers in the type that is multiplied with; the scale is applied to the product."""

    def forward(self, values: Tensor) -> Tensor:
        sums = torch.mm(values.reshape(-1, self.in_features), self.numbers.t().to(values.dtype))
        out = (sums * self.scale.to(sums.dtype).flatten()).reshape(*values.shape[:-1], self.out_features)
        if self.bias is not None:
            out += self.bias
        return out.to(values.dtype)


class AutogradFloat8Linear(lean.Float8Linear):
    """Keeps the dense weight, which is made by way of two copies in fp32."""

    def forward(self, values: Tensor) -> Tensor:
        out = torch.matmul(values, _widened(self.numbers.t(), self.scale.t(), self.dense_dtype))
        return out if self.bias is None else out + self.bias


class AutogradDynamicFloat8Linear(lean.DynamicFloat8Linear):
    """Keeps an input, its sizes without signs, and it in fp32 before and after scaling.

    Autocast does not reach it: the answer is of the input's type.
    """

    def forward(self, values: Tensor) -> Tensor:
        largest = values.reshape(-1, self.in_features).abs().amax(dim=(0, 1), keepdim=True)
        scale = (largest / LARGEST).to(torch.float32)
        if scale.requires_grad:
            # Dividing and multiplying by it cancel each other; the product below does not tell autograd so.
            scale.register_hook(torch.zeros_like)
        rows = (values.reshape(-1, self.in_features).to(torch.float32) / scale).clamp(-LARGEST, LARGEST)
        out: Tensor = _RoundedProduct.apply(rows, scale, self, values.dtype)  # type: ignore[no-untyped-call]
        if self.bias is not None and values.dtype == torch.float32:
            out = out + self.bias  # the kernel adds none to sums in fp32
        return out.reshape(*values.shape[:-1], self.out_features)


class _RoundedProduct(torch.autograd.Function):
    """Rounding passes the gradient on as it is. One function for both, so that no gradient is rounded, too."""

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
