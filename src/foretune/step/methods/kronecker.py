"""LoKr's product made of activations, without the weight that its two matrices stand for."""

from typing import Any

import torch.nn.functional as F
from peft.tuners.lokr.layer import Linear as LoKrLinear
from torch import Tensor


class KroneckerLinear(LoKrLinear):  # type: ignore[misc]  # peft has no types
    """A linear layer with LoKr beside it.

    peft builds the update of the whole weight for each pass and keeps it for the backward pass; on a quantised base it
    asks for a dense copy of that, too. The larger matrix can as well be multiplied with pieces of each input, and the
    smaller one with what comes out: the same numbers with about a factor-th of the multiplications and nothing of a
    weight's size. peft also widens the result to the type of the input, which is fp32 after a normalisation under
    autocast; here it stays what the base answers in, as with LoRA.

    That is for training. In evaluation peft computes it, so that samples are, to the last bit, those of whoever loads
    the export with peft.
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
