"""Checks that the target layers exist and that the adapter fits them, before anything is changed."""

import math
from collections.abc import Sequence

from torch import nn

from foretune.choices.method import AnyAdapter, Oft
from foretune.core.errors import Refused
from foretune.models.family import Family


def check_targets(choice: AnyAdapter, targets: Sequence[str], family: Family, denoiser: nn.Module) -> None:
    """Raises unless every target names a layer of this model that the adapter supports, with a size it divides."""
    # peft's OFT unfolds a convolution's input into overlapping patches and sums them up, which changes the result even
    # without any rotation (peft 0.21).
    kinds = (nn.Linear,) if isinstance(choice, Oft) else (nn.Linear, nn.Conv2d)
    layers = {name: module for name, module in denoiser.named_modules() if isinstance(module, kinds)}
    chosen: dict[str, nn.Module] = {}
    for target in targets:
        found = {name: m for name, m in layers.items() if name == target or name.endswith("." + target)}
        if not found:
            ends = ", ".join(sorted({_end(name) for name in layers}))
            raise Refused(
                f"method.targets: no layer of this {family.name} model that {choice.kind} can change is named "
                f"{target!r}. Those that it can change end in: {ends}."
            )
        chosen |= found
    if isinstance(choice, Oft):
        _check_block_size(choice.block_size, [_num_inputs(m) for m in chosen.values()])


def _check_block_size(asked: int, sides: Sequence[int]) -> None:
    """Raises if the block size does not divide every side: peft would silently use another."""
    common = math.gcd(*sides)
    if common % asked == 0:
        return
    wrong = next(side for side in sides if side % asked)
    divisors = [number for number in range(1, common + 1) if common % number == 0]
    nearest = min(divisors, key=lambda number: (abs(number - asked), number))
    hint = f"Nearest: method.block_size={nearest}" if nearest > 1 else "Choose other method.targets"
    raise Refused(f"method.block_size: {asked} does not divide {wrong}, the size of a layer that is adapted. {hint}")


def _num_inputs(module: nn.Module) -> int:
    if isinstance(module, nn.Conv2d):
        return module.in_channels // module.groups
    assert isinstance(module, nn.Linear)
    return module.in_features


def _end(name: str) -> str:
    pieces = name.split(".")
    return ".".join(pieces[-2:]) if pieces[-1].isdigit() else pieces[-1]
