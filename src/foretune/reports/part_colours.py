"""One colour for each part of memory, the same on every page.

Neighbours in a bar differ in lightness as well as in hue, so that they differ without colour vision and on paper.
Each colour has a lighter sister for dark pages, and the ink that can be read on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from foretune.core.vocabulary import MemoryPart

_BLACK, _WHITE = "#14171a", "#ffffff"


@dataclass(frozen=True)
class Colour:
    """Fill and ink on light and on dark pages."""

    light: str
    light_ink: str
    dark: str
    dark_ink: str = _BLACK


_COLOURS = {
    MemoryPart.FROZEN_WEIGHTS: Colour("#3d5078", _WHITE, "#8298c8"),
    MemoryPart.TRAINED_WEIGHTS: Colour("#0a6eb0", _WHITE, "#4fa6df"),
    MemoryPart.OPTIMIZER_STATE: Colour("#8fcbea", _BLACK, "#b5e0f6"),
    MemoryPart.EMA: Colour("#3ea394", _BLACK, "#5cc0b1"),
    MemoryPart.GRADIENTS: Colour("#146b34", _WHITE, "#4fae6f"),
    MemoryPart.ACTIVATIONS: Colour("#e0ad36", _BLACK, "#e6bd5e"),
    MemoryPart.TEMPORARIES: Colour("#d9788a", _BLACK, "#e29aa8"),
    MemoryPart.INPUTS: Colour("#7d2350", _WHITE, "#c4679a"),
    MemoryPart.CAST_WEIGHTS: Colour("#a04a93", _WHITE, "#cf86c4"),
    MemoryPart.TEXT_ENCODERS: Colour("#8c8c2c", _BLACK, "#b5b552"),
    MemoryPart.AUTOENCODER: Colour("#ddd08a", _BLACK, "#eee3a9"),
    MemoryPart.WORKSPACE: Colour("#6b7075", _WHITE, "#9aa0a6"),
    MemoryPart.SWAPPED_WEIGHTS: Colour("#a9bfe6", _BLACK, "#c5d4f0"),
    MemoryPart.GATHERED_WEIGHTS: Colour("#5f7fbf", _BLACK, "#a3b9e6"),
    MemoryPart.COMMUNICATION: Colour("#b98a5a", _BLACK, "#d6b088"),
}
_OTHERS = (
    Colour("#b8bdc2", _BLACK, "#6f757b", _WHITE),
    Colour("#c9663d", _BLACK, "#e08a66"),
    Colour("#4b3b8f", _WHITE, "#9486d6"),
)


def colour_classes(parts: Iterable[str]) -> Mapping[str, str]:
    """The class of each part that occurs, in the palette's order; parts it does not know share its last colours."""
    found = set(parts)
    known = {part: f"c{number}" for number, part in enumerate(_COLOURS) if part in found}
    strange = sorted(found - set(_COLOURS))
    return known | {part: f"c{len(_COLOURS) + number % len(_OTHERS)}" for number, part in enumerate(strange)}


def colour_rules() -> str:
    """The style sheet's rules: what a class fills with, and the ink of text on it."""
    every = (*_COLOURS.values(), *_OTHERS)
    light = "".join(f"--c{i}:{c.light};--i{i}:{c.light_ink};" for i, c in enumerate(every))
    dark = "".join(f"--c{i}:{c.dark};--i{i}:{c.dark_ink};" for i, c in enumerate(every))
    classes = "\n".join(
        f".c{i}{{fill:var(--c{i});background:var(--c{i})}}.c{i}t{{fill:var(--i{i})}}" for i in range(len(every))
    )
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{classes}"
