"""LoKr computed on activations, without building the full weight update."""

from typing import Any

import torch.nn.functional as F
from peft.tuners.lokr.layer import Linear as LoKrLinear
from torch import Tensor


class KroneckerLinear(LoKrLinear):  # type: ignore[misc]  # peft has no types
    """A linear layer with LoKr.

    peft builds the full weight update in each forward pass and saves it for the backward pass; on a quantised base it
    also dequantises the weight. Here the larger matrix is multiplied with slices of each input and the smaller one with
    the results: the same values with about 1/factor of the multiplications and no tensor of the weight's size. peft
    also casts the result to the input's dtype, which is fp32 after a normalisation under autocast; here it keeps the
    dtype of the base layer's output, as with LoRA.

    This is for training. In evaluation peft computes it, so samples are bit-identical to those of anyone who loads the
    export with peft.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.disable_adapters or self.merged or not self.training:
            answer: Tensor = super().forward(x, *args, **kwargs)
            return answer
        result: Tensor = self.base_layer(x, *args, **kwargs)
        for name in self.active_adapters:
            if name in self._available_adapters:
                result = result + self._get_delta_activations(name, x)
        return result

    def _get_delta_activations(self, adapter_name: str, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002 - peft's name
        if not self.training:
            whole: Tensor = super()._get_delta_activations(adapter_name, input, *args, **kwargs)
            return whole
        small = self.lokr_w1.get(adapter_name)
        if small is None:
            small = self.lokr_w1_a[adapter_name] @ self.lokr_w1_b[adapter_name]
        values = self._cast_input_dtype(input, small.dtype)
        pieces = values.reshape(*values.shape[:-1], small.shape[1], -1)
        if adapter_name in self.lokr_w2:
            products = F.linear(pieces, self.lokr_w2[adapter_name])
        else:
            products = F.linear(F.linear(pieces, self.lokr_w2_b[adapter_name]), self.lokr_w2_a[adapter_name])
        crossed = F.linear(products.transpose(-1, -2), small).transpose(-1, -2)
        delta: Tensor = crossed.reshape(*values.shape[:-1], -1) * self.scaling[adapter_name]
        return delta
