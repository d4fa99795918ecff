"""Counting weights, and telling whether they changed."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from foretune.step.methods import AppliedMethod

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def num_trained_and_all(method: AppliedMethod) -> tuple[int, int]:
    """Numbers of trained and of all weights of the denoiser."""
    trained = sum(p.numel() for p in method.trained().values())
    return trained, trained + sum(p.numel() for p in method.frozen().values())


def checksum(parameters: Mapping[str, nn.Parameter]) -> int:
    """A sum over the bits of weights, made on their device at the speed of its memory; any single change alters it."""
    total = 0
    for parameter in parameters.values():
        flat = parameter.detach().reshape(-1)
        total += int(flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64))
    return total


def num_changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> int:
    """How many tensors are no longer the same."""
    return sum(not torch.equal(before[name], after[name]) for name in after)
