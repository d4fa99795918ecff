"""8-bit weights as torchao makes them: integers, or floating-point numbers of 8 bits, with scales in fp32."""

import torch
from torch import Tensor

from foretune.step.quantizing.float8_products import fits, rounded, scaled_product
from foretune.step.quantizing.importing import quietly
from foretune.step.quantizing.layer import Bits, QuantizedLinear

with quietly():
    from torchao.quantization import Float8Tensor, Int8Tensor, PerRow, PerTensor


class _ScaledLinear(QuantizedLinear):
    """Numbers of 8 bits, and what they are multiplied with."""

    numbers: Tensor
    scale: Tensor

    def dense(self, bits: Bits, dtype: torch.dtype) -> Tensor:
        # Every 8-bit number is exact in 16 bits, and the product is rounded once: it is made in fp32.
        return bits["numbers"].to(dtype).mul_(bits["scale"])


class Int8Linear(_ScaledLinear):
    """Integers with one scale for each row."""

    @staticmethod
    def quantised(weight: Tensor) -> dict[str, Tensor]:
        made = Int8Tensor.from_hp(weight, PerRow())
        return {"numbers": made.qdata, "scale": made.scale}


class Float8Linear(_ScaledLinear):
    """Numbers with 4 bits of exponent and 3 of mantissa, and one scale for each row."""

    @staticmethod
    def quantised(weight: Tensor) -> dict[str, Tensor]:
        made = Float8Tensor.from_hp(weight, granularity=PerRow())
        return {"numbers": made.qdata, "scale": made.scale}


class DynamicFloat8Linear(_ScaledLinear):
    """Inputs are rounded to 8 bits, too, so that the product is one of 8-bit numbers; one scale for each matrix.

    The gradient of the input is made with a dense copy of the weight: rounded gradients would need another scale.
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
