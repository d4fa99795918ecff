"""Unquantised weights with FP8 products: torchao's float8 training, with tensorwise scales."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from foretune.step.quantizing.compute_type import in_compute_type
from foretune.step.quantizing.float8_products import fits, is_emulated
from foretune.step.quantizing.importing import quietly

with quietly():
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import GemmInputRole, LinearMMConfig

# The gradient of a weight sums over tokens, whose number may not be a multiple of 16.
_CONFIG = Float8LinearConfig(pad_inner_dim=True)


class Float8TrainingLinear(Float8Linear):  # type: ignore[misc]
    """torchao's layer, which supports only autocast of NVIDIA GPUs and also computes gradients of frozen weights.

    This subclass follows any device's autocast, and for a frozen weight computes only the gradient of its input.
    """

    @classmethod
    def takes(cls, num_inputs: int, num_outputs: int) -> bool:
        return fits(num_inputs, num_outputs)

    @classmethod
    def of(cls, dense: nn.Linear) -> Self:
        made: Self = cls.from_float(dense, _CONFIG)
        return made

    def forward(self, values: Tensor) -> Tensor:
        values = in_compute_type(values)
        config = self.linear_mm_config
        if is_emulated(values.device.type):
            config = LinearMMConfig(*(product._replace(emulate=True) for product in config))
        with torch.autocast(values.device.type, enabled=False):
            if self.weight.requires_grad:
                out = matmul_with_hp_or_float8_args.apply(values, self.weight.t(), config, self.config)
            else:
                out = _FrozenProduct.apply(values, self.weight, config)  # type: ignore[no-untyped-call]
        answer: Tensor = out if self.bias is None else out + self.bias.to(out.dtype)
        return answer


class _FrozenProduct(torch.autograd.Function):
    """The same products without the gradient of the weight, so that the input need not be saved."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, config: LinearMMConfig) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.config = config
        return _product(values, torch.float8_e4m3fn, GemmInputRole.INPUT, weight.t(), config)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        (weight,) = ctx.saved_tensors
        return _product(gradient, torch.float8_e5m2, GemmInputRole.GRAD_OUTPUT, weight, ctx.config), None, None


def _product(values: Tensor, dtype: torch.dtype, role: GemmInputRole, matrix: Tensor, config: LinearMMConfig) -> Tensor:
    rows = hp_tensor_to_float8_dynamic(values.reshape(-1, values.shape[-1]), dtype, config, gemm_input_role=role)
    weight = hp_tensor_to_float8_dynamic(matrix, torch.float8_e4m3fn, config, gemm_input_role=GemmInputRole.WEIGHT)
    out: Tensor = torch.mm(rows, weight)
    return out.reshape(*values.shape[:-1], out.shape[-1])
