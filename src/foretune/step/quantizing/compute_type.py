"""The type that products are made in, for layers that torch's autocast does not know."""

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function


def in_compute_type(values: Tensor) -> Tensor:
    """The values as autocast would give them to a linear layer; outside of autocast as they are.

    It can be overridden like torch's own functions, so that a planner which imitates another device's autocast is
    asked, too.
    """
    if has_torch_function((values,)):
        return handle_torch_function(in_compute_type, (values,), values)
    device = values.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return values.to(torch.get_autocast_dtype(device))
    return values
