"""Counts weights and detects whether they changed."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from foretune.choices.memory_pieces import SUMMED_AT_ONCE
from foretune.step.engine import own_part, sums_over_shards
from foretune.step.methods import AppliedMethod
from foretune.step.quantizing import QuantizedLinear

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def num_trained_and_all(method: AppliedMethod) -> tuple[int, int]:
    """Returns the numbers of trained and of all weights of the denoiser."""
    return sum(p.numel() for p in method.trained().values()), num_weights(method.denoiser)


def num_weights(model: nn.Module) -> int:
    """Returns the number of weights of a model; quantised layers count their weights before quantisation."""
    counted: dict[int, int] = {}
    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            counted[id(module)] = module.num_weights
        else:
            counted |= {id(p): p.numel() for p in module.parameters(recurse=False)}
    return sum(counted.values())


def checksums(parameters: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """Returns a sum over the bits of each tensor; any single change alters it.

    It is computed on the device at memory bandwidth, and all sums are copied to the host at once. It makes no copy of
    a whole weight: the weights may fill the device.
    """
    sums = {
        name: _sum_of_bits(flat.view(_INTEGER_OF_SIZE[flat.element_size()]))
        for name, flat in ((name, own_part(parameter.detach()).reshape(-1)) for name, parameter in parameters.items())
    }
    found: dict[str, int] = {}
    for device in {total.device for total in sums.values()}:  # swapped weights are on the host
        names = [name for name, total in sums.items() if total.device == device]
        found |= zip(names, torch.stack([sums[name] for name in names]).tolist(), strict=True)
    return sums_over_shards({name: found[name] for name in sums}, parameters)


def _sum_of_bits(flat: Tensor) -> Tensor:
    """Returns the sum in int64. In parts, because torch converts all that it adds: 8 bytes for each number."""
    if flat.numel() <= SUMMED_AT_ONCE:
        return flat.sum(dtype=torch.int64)
    return torch.stack([part.sum(dtype=torch.int64) for part in flat.split(SUMMED_AT_ONCE)]).sum()


def num_changed(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Returns how many tensors changed."""
    return sum(before[name] != after[name] for name in after)
