"""The compute dtype, for layers that torch's autocast does not cover."""

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
