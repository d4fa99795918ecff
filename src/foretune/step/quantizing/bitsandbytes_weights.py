"""4-bit and 8-bit weights of bitsandbytes."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from foretune.step.quantizing.compute_type import without_autocast
from foretune.step.quantizing.importing import quietly
from foretune.step.quantizing.layer import Bits, QuantizedLinear

with quietly():
    import bitsandbytes.functional as bnb

_BLOCK = 64
"""Number of weights that share a scale."""
_SCALE_BLOCK = 256
"""Number of scales that share a second-level scale."""


class Nf4Linear(QuantizedLinear):
    """16 levels at quantiles of a normal distribution; scales of blocks are in 8 bits (QLoRA, arXiv:2305.14314)."""

    @classmethod
    def takes(cls, num_inputs: int, num_outputs: int) -> bool:
        return num_inputs * num_outputs % _BLOCK == 0

    @staticmethod
    def quantised(weight: Tensor) -> dict[str, Tensor]:
        packed, state = bnb.quantize_4bit(weight.contiguous(), blocksize=_BLOCK, quant_type="nf4")
        mean_scale = state.absmax.mean()
        # The library shares one table of levels, on the first device it sees; a copy per layer can move with the layer.
        levels = _scale_levels().to(weight.device, copy=True)
        scales, of_scales = bnb.quantize_blockwise(state.absmax - mean_scale, levels, blocksize=_SCALE_BLOCK)
        return {
            "packed": packed,
            "scales": scales,
            "scale_levels": levels,
            "scale_of_scales": of_scales.absmax,
            "mean_scale": mean_scale,
        }

    def dense(self, bits: Bits, dtype: torch.dtype) -> Tensor:
        state = bnb.QuantState(
            absmax=bits["scales"],
            # One row per block: on CPUs, version 0.50 uses a wrong scale if a block extends past the end of a row.
            shape=torch.Size((self.in_features * self.out_features // _BLOCK, _BLOCK)),
            dtype=dtype,
            blocksize=_BLOCK,
            quant_type="nf4",
            offset=bits["mean_scale"],
            state2=bnb.QuantState(
                absmax=bits["scale_of_scales"], code=bits["scale_levels"], blocksize=_SCALE_BLOCK, dtype=torch.float32
            ),
        )
        blocks: Tensor = bnb.dequantize_4bit(bits["packed"], state)
        return blocks.view(self.out_features, self.in_features)


@register_flop_formula(torch.ops.bitsandbytes.int8_linear_matmul)
def _num_flops(rows: torch.Size, matrix: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * rows.numel() * matrix[0]


@cache
def _scale_levels() -> Tensor:
    levels: Tensor = bnb.create_dynamic_map()
    return levels


class BnbInt8Linear(QuantizedLinear):
    """int8 weights with one scale per row. Inputs are quantised row by row, so that the product is one of integers.

    The gradient of the input is computed with a dense copy of the weight.
    """

    numbers: Tensor
    scale: Tensor

    @classmethod
    def takes(cls, num_inputs: int, num_outputs: int) -> bool:
        """Whether the library has an integer product for this size; it silently multiplies others in fp32."""
        return num_inputs % 4 == 0 and num_outputs % 4 == 0

    @staticmethod
    def quantised(weight: Tensor) -> dict[str, Tensor]:
        numbers, scale, _ = bnb.int8_vectorwise_quant(weight.to(torch.float16).contiguous())
        return {"numbers": numbers, "scale": scale}

    def dense(self, bits: Bits, dtype: torch.dtype) -> Tensor:
        return bits["numbers"].to(dtype).mul_(bits["scale"][:, None] / 127)

    def product(self, values: Tensor) -> Tensor:
        rows = values.reshape(-1, self.in_features).to(torch.float16)  # the only dtype of the library's kernel
        numbers, scale, _ = bnb.int8_vectorwise_quant(rows)
        del rows
        # Where the library has no kernel it multiplies in fp32 (CPUs without AVX-512), of which autocast would make
        # half precision.
        with without_autocast(numbers):
            sums = torch.ops.bitsandbytes.int8_linear_matmul(numbers, self.numbers)
        del numbers
        out: Tensor = torch.ops.bitsandbytes.int8_mm_dequant(
            sums, scale, self.scale, dtype=values.dtype, bias=self.bias
        )
        return out.reshape(*values.shape[:-1], self.out_features)
