"""Converts a module on meta to fake tensors: shapes, dtypes and lifetimes, no memory."""

import torch
from torch import Tensor, nn


def materialise(module: nn.Module) -> None:
    """Replaces every parameter and buffer by a new tensor of its shape and dtype. Call it under a fake tensor mode.

    Shared parameters stay shared. Tensors that modules store as plain attributes (position tables) are replaced too.
    """
    fresh: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                if id(parameter) not in fresh:
                    empty = torch.empty(parameter.shape, dtype=parameter.dtype)
                    fresh[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                part._parameters[name] = fresh[id(parameter)]
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
        for name, value in list(vars(part).items()):
            if isinstance(value, Tensor) and value.device.type == "meta":
                setattr(part, name, torch.empty(value.shape, dtype=value.dtype))
            elif isinstance(value, (list, tuple)) and value and all(isinstance(item, Tensor) for item in value):
                setattr(part, name, type(value)(torch.empty(item.shape, dtype=item.dtype) for item in value))
