"""Counting weights, and telling whether they changed."""

from collections.abc import Mapping

import torch
from torch import nn

from foretune.step.methods import AppliedMethod

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def num_trained_and_all(method: AppliedMethod) -> tuple[int, int]:
    """Numbers of trained and of all weights of the denoiser."""
    trained = sum(p.numel() for p in method.trained().values())
    return trained, trained + sum(p.numel() for p in method.frozen().values())


def checksums(parameters: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """A sum over the bits of each tensor: any single change alters it.

    Made on the device at the speed of its memory and brought to the host in one go, so that it costs no copy of the
    weights, which may fill half of the device.
    """
    if not parameters:
        return {}
    sums = [
        flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64)
        for flat in (parameter.detach().reshape(-1) for parameter in parameters.values())
    ]
    return dict(zip(parameters, torch.stack(sums).tolist(), strict=True))


def num_changed(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """How many tensors are no longer the same."""
    return sum(before[name] != after[name] for name in after)
