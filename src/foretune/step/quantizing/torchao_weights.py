"""8-bit weights of torchao: int8 or FP8 with fp32 scales."""

import torch
from torch import Tensor

from foretune.step.quantizing.float8_products import fits, rounded, scaled_product
from foretune.step.quantizing.importing import quietly
from foretune.step.quantizing.layer import Bits, QuantizedLinear

with quietly():
    from torchao.quantization import Float8Tensor, Int8Tensor, PerRow, PerTensor


class _ScaledLinear(QuantizedLinear):
    """8-bit values and their scales."""

    numbers: Tensor
    scale: Tensor

    def dense(self, bits: Bits, dtype: torch.dtype) -> Tensor:
        # Every 8-bit value is exact in 16 bits, and the product is computed in fp32, so it is rounded once.
        return bits["numbers"].to(dtype).mul_(bits["scale"])


class Int8Linear(_ScaledLinear):
    """int8 weights with one scale per row."""

    @staticmethod
    def quantised(weight: Tensor) -> dict[str, Tensor]:
        made = Int8Tensor.from_hp(weight, PerRow())
        return {"numbers": made.qdata, "scale": made.scale}


class Float8Linear(_ScaledLinear):
    """FP8 (e4m3) weights with one scale per row."""

    @staticmethod
    def quantised(weight: Tensor) -> dict[str, Tensor]:
        made = Float8Tensor.from_hp(weight, granularity=PerRow())
        return {"numbers": made.qdata, "scale": made.scale}


class DynamicFloat8Linear(_ScaledLinear):
    """FP8 weights with one scale per matrix. Inputs are quantised too, so that the product is an FP8 product.

    The gradient of the input is computed with a dense copy of the weight: FP8 gradients would need another scale.
    """

    @classmethod
    def takes(cls, num_inputs: int, num_outputs: int) -> bool:
        return fits(num_inputs, num_outputs)

    @staticmethod
    def quantised(weight: Tensor) -> dict[str, Tensor]:
        made = Float8Tensor.from_hp(weight, granularity=PerTensor())
        return {"numbers": made.qdata, "scale": made.scale}

    def product(self, values: Tensor) -> Tensor:
        rows, scale = rounded(values.reshape(-1, self.in_features))
        out = scaled_product(rows, self.numbers.t(), scale, self.scale, values.dtype, self.bias)
        return out.reshape(*values.shape[:-1], self.out_features)
