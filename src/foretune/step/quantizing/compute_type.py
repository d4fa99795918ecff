"""The compute dtype, for layers that torch's autocast does not cover."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function


def in_compute_type(values: Tensor) -> Tensor:
    """Casts values as autocast does for a linear layer; outside autocast returns them unchanged.

    It supports `__torch_function__`, so that a planner can imitate another device's autocast here too.
    """
    if has_torch_function((values,)):
        return handle_torch_function(in_compute_type, (values,), values)
    device = values.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return values.to(torch.get_autocast_dtype(device))
    return values


def without_autocast(values: Tensor) -> AbstractContextManager[object]:
    """Surrounds operators that must keep the dtype of these inputs, because autocast would round them."""
    device = values.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
