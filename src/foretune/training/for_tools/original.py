"""A denoiser's tensors in the layout of the program that it was published with."""

from collections.abc import Mapping

import torch
from torch import Tensor

from foretune.catalog.tool_names import OriginalLayout, OriginalPlace
from foretune.core.errors import Refused
from foretune.training.for_tools.updates import swap


def to_original(state: Mapping[str, Tensor], layout: OriginalLayout) -> dict[str, Tensor]:
    """Renames, stacks and swaps what diffusers has apart; no number changes.

    Raises:
        Refused: a tensor has no place in the original layout, or one of several that are stacked is missing.
    """
    parts: dict[str, list[Tensor | None]] = {}
    for name, tensor in state.items():
        place = layout.place(name)
        if place is None:
            raise Refused(f"The original layout of this model has no place for {name}. Export it for diffusers.")
        found = parts.setdefault(place.name, [None] * place.num_parts)
        if found[place.part] is not None:
            raise Refused(f"The original layout has one place, {place.name}, for {name} and another tensor.")
        found[place.part] = _as_there(tensor, place)
    return {name: _stacked(name, found) for name, found in parts.items()}


def _as_there(tensor: Tensor, place: OriginalPlace) -> Tensor:
    if place.is_convolution and tensor.dim() > 1:
        return tensor[..., None, None]
    if place.is_transposed:
        return tensor.T
    return swap(tensor) if place.is_swapped else tensor


def _stacked(name: str, parts: list[Tensor | None]) -> Tensor:
    given = [part for part in parts if part is not None]
    if len(given) != len(parts):
        raise Refused(f"{name} of the original layout is stacked from {len(parts)} tensors; {len(given)} exist.")
    return given[0] if len(given) == 1 else torch.cat(given)
