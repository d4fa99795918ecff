"""How the program that a model was published with names and stacks the layers that diffusers names otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class OriginalPlace:
    """Where the original program keeps a layer of diffusers."""

    name: str
    """Name of the original layer, or of a parameter."""
    part: int = 0
    """Which of the layers that are stacked in the original one, by output rows, from the first."""
    num_parts: int = 1
    is_swapped: bool = False
    """Whether the halves of its output rows are in the other order."""
    is_convolution: bool = False
    """Whether its matrix is a convolution of a single pixel there."""
    is_transposed: bool = False


Names = Mapping[str, OriginalPlace]
"""Places by names of layers below a block; a name that ends in `.weight` is of a parameter."""


@dataclass(frozen=True)
class OriginalLayout:
    """Names of a model's layers in the original program."""

    stems: Mapping[str, tuple[str, Names | None]] = field(default_factory=dict)
    """Blocks by their names in diffusers: the original name, and the names inside; None if they are the same."""
    layers: Names = field(default_factory=dict)
    """All other layers."""

    def place(self, name: str) -> OriginalPlace | None:
        """Returns the place of a layer or parameter, or None if the original program has none for it."""
        if (found := self._find(name)) is not None:
            return found
        layer, _, leaf = name.rpartition(".")
        found = self._find(layer) if layer else None
        return None if found is None else replace(found, name=f"{found.name}.{leaf}")

    def _find(self, name: str) -> OriginalPlace | None:
        if name in self.layers:
            return self.layers[name]
        pieces = name.split(".")
        for count in range(len(pieces) - 1, 0, -1):
            stem = ".".join(pieces[:count])
            if stem in self.stems:
                original, inside = self.stems[stem]
                rest = ".".join(pieces[count:])
                place = OriginalPlace(rest) if inside is None else inside.get(rest)
                return None if place is None else replace(place, name=f"{original}.{place.name}")
        return None


def renamed(names: Mapping[str, str]) -> Names:
    """Returns places of layers that differ in their names only."""
    return {name: OriginalPlace(original) for name, original in names.items()}


def convolved(names: Mapping[str, str]) -> Names:
    """Returns places of linear layers that are convolutions of a single pixel there."""
    return {name: OriginalPlace(original, is_convolution=True) for name, original in names.items()}


def stacked(original: str, *names: str) -> Names:
    """Returns the places of layers that the original program has in one, in this order."""
    return {name: OriginalPlace(original, part, len(names)) for part, name in enumerate(names)}


def swapped(name: str, original: str) -> Names:
    """Returns the place of a layer whose halves are in the other order: scale and shift, or value and gate."""
    return {name: OriginalPlace(original, is_swapped=True)}
