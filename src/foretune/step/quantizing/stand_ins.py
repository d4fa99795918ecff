"""Dense layers in the place of quantised ones, for loaders of adapters that look for a weight."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from foretune.step.quantizing.layer import QuantizedLinear


@contextmanager
def dense_stand_ins(denoiser: nn.Module) -> Iterator[None]:
    """Puts dense layers, each with one number for a weight, in the place of the quantised ones meanwhile.

    Layers to which an adapter is attached meanwhile have it on the quantised layer afterwards.
    """
    quantised = {name: module for name, module in denoiser.named_modules() if isinstance(module, QuantizedLinear)}
    for name, layer in quantised.items():
        denoiser.set_submodule(name, _stand_in(layer))
    try:
        yield
    finally:
        for name, layer in quantised.items():
            found = denoiser.get_submodule(name)
            if isinstance(found, BaseTunerLayer):
                found.base_layer = layer
            else:
                denoiser.set_submodule(name, layer)


def _stand_in(layer: QuantizedLinear) -> nn.Linear:
    dense = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    device = next(iter(layer.bits().values())).device
    one = torch.zeros((), dtype=layer.dense_dtype, device=device).expand(layer.out_features, layer.in_features)
    dense.weight = nn.Parameter(one, requires_grad=False)
    dense.register_parameter("bias", layer.bias)
    return dense
