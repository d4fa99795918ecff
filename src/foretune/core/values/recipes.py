"""What an optimizer or a quantised layer does to one weight, recorded once for weights of any shape.

A recipe holds no model: its pieces are counted in numbers of the weight (all of them, its row sums, one for each 256),
so it can be put into the trace of every model that trains, or freezes, weights.
"""

from typing import Literal

from foretune.core.values.base import Part

Count = Literal[
    "weights", "rows", "columns", "inputs", "outputs", "samples", "samples x inputs", "samples x outputs", "one"
]
"""How many numbers a piece has. Of a trained weight: as the weight, its sums over the last axis (rows) or over the last
but one (columns). Of a linear layer: its inputs or outputs, and the rows of what it is multiplied with (samples)."""


class Piece(Part):
    """One storage that a recipe makes, or a state that it keeps."""

    count: Count
    bytes_per_number: float
    """Below one where a number stands for several of the weight, as the scale of a block does."""
    is_on_host: bool = False


class Act(Part):
    """A piece is made or released."""

    piece: int
    """Index into the recipe's pieces."""
    is_release: bool = False
    of_previous: bool = False
    """The piece of the weight before, which a loop lets go of only in its next round."""


class RecipeSection(Part):
    """What is done for every weight, one after another, before anything else is done."""

    acts: tuple[Act, ...]
    released_at_end: tuple[int, ...] = ()
    """Pieces of all weights that are released when the section is over."""


class WeightUpdate(Part):
    """How one weight is updated among all others, and alone."""

    states: tuple[Piece, ...]
    pieces: tuple[Piece, ...]
    sections: tuple[RecipeSection, ...]
    pieces_alone: tuple[Piece, ...]
    alone: tuple[Act, ...]
    """Where each weight has an optimizer of its own, run in the backward pass."""


class UpdateRecipe(Part):
    """An optimizer, by the kind of weight."""

    vector: WeightUpdate
    matrix: WeightUpdate
    small_vector: WeightUpdate
    small_matrix: WeightUpdate
    bytes_moved: dict[str, float]
    """For each trained weight, by the sort of operator."""


class LayerRecipe(Part):
    """A linear layer whose frozen weight is kept in fewer bits."""

    bits: tuple[Piece, ...]
    """What stands for the weight."""
    pieces: tuple[Piece, ...]
    before_product: tuple[Act, ...]
    after_product: tuple[Act, ...]
    gradient_pieces: tuple[Piece, ...]
    before_gradient: tuple[Act, ...]
    after_gradient: tuple[Act, ...]
    side_multiple: int
    """Layers whose numbers of inputs and outputs are no multiples of this stay as they are,"""
    weights_multiple: int
    """nor are those quantised whose number of weights is no multiple of this."""


class Recipes(Part):
    """All of them, by name."""

    updates: dict[str, UpdateRecipe]
    layers: dict[str, LayerRecipe]
