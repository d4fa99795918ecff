"""A denoiser's tensors in the layout of the program that it was published with."""

from collections.abc import Callable, Iterable, Mapping, Sequence

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


def original_names(names: Iterable[str], layout: OriginalLayout) -> dict[str, list[str]]:
    """Returns, for each name of the original layout, the names in diffusers of the tensors that it holds."""
    found: dict[str, list[str]] = {}
    for name in names:
        place = layout.place(name)
        assert place is not None, "`to_original` has refused names without a place"
        found.setdefault(place.name, []).append(name)
    return found


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


def from_original(
    shapes: Mapping[str, Sequence[int]], layout: OriginalLayout, read: Callable[[str], Tensor]
) -> dict[str, Tensor]:
    """Returns the tensors of these names and shapes in diffusers from those of the original layout; undoes
    `to_original`.

    Raises:
        Refused: a tensor has no place in the original layout, or has another shape there.
    """
    names: dict[str, list[tuple[OriginalPlace, str]]] = {}
    for name in shapes:
        place = layout.place(name)
        if place is None:
            raise Refused(f"The original layout of this model has no place for {name}.")
        names.setdefault(place.name, []).append((place, name))
    found: dict[str, Tensor] = {}
    for original, sharing in names.items():
        sharing.sort(key=lambda one: one[0].part)
        stacked = read(original)
        rows = [_rows_there(shapes[name], place) for place, name in sharing]
        num_rows = stacked.shape[0] if stacked.dim() else 0
        if len(sharing) != sharing[0][0].num_parts or sum(rows) != num_rows:
            wanted = " + ".join(map(str, rows))
            raise Refused(f"{original} has {num_rows} rows in the file; the base model has {wanted}.")
        for (place, name), part in zip(sharing, stacked.split(rows), strict=True):
            tensor = _as_here(part, place)
            if tuple(tensor.shape) != tuple(shapes[name]):
                sizes = tuple(tensor.shape), tuple(shapes[name])
                raise Refused(
                    f"{original} has the shape {sizes[0]} in the file; {name} of the base model has {sizes[1]}."
                )
            # Those that were stacked share their memory, which safetensors does not write.
            found[name] = tensor.clone() if place.num_parts > 1 else tensor.contiguous()
    return found


def _rows_there(shape: Sequence[int], place: OriginalPlace) -> int:
    return shape[-1] if place.is_transposed else shape[0]


def _as_here(tensor: Tensor, place: OriginalPlace) -> Tensor:
    # Some programs write a convolution of a single pixel as a matrix.
    if place.is_convolution and tensor.dim() > 2:  # noqa: PLR2004 - a matrix
        return tensor.flatten(1)
    if place.is_transposed:
        return tensor.T
    return swap(tensor) if place.is_swapped else tensor
