"""Replaces a dense base by a quantised one.

This is exact because a quantised layer stores only its quantised tensors (`step.quantizing.layer`): for each product,
forward and backward, it allocates and frees what the recipe lists. The marked trace was recorded with such products.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from foretune.core.values.recipes import Act, Count, LayerRecipe, Piece
from foretune.core.values.step_trace import Growth, Moment, Storage
from foretune.core.vocabulary import MemoryPart
from foretune.planner.composing.pieces import AFTER, BEFORE, Composer, Mark, Place, constant, scaled, shifted

_BYTES_IN_COMPUTE_TYPE = 2


def quantise(composer: Composer, recipe: LayerRecipe) -> None:
    """Replaces the weights of linear layers in blocks, and adds the allocations of their products."""
    for place in composer.lists:
        _replace_weights(composer, recipe, place)
        results = _Results(composer, place)
        for what, pieces, before, after in (
            ("product", recipe.pieces, recipe.before_product, recipe.after_product),
            ("gradient", recipe.gradient_pieces, recipe.before_gradient, recipe.after_gradient),
        ):
            sides = _sides(composer.marks[place], f"{what} ")
            for inputs, outputs in sides:
                num_inputs, num_outputs = _whole(inputs), _whole(outputs)
                if _takes(recipe, num_inputs, num_outputs):
                    result = num_outputs if what == "product" else num_inputs
                    counts = _counts(num_inputs, num_outputs, results.rows(inputs, result))
                    _add(composer, place, inputs, counts, pieces, before, after)
                    results.update()


def _replace_weights(composer: Composer, recipe: LayerRecipe, place: Place) -> None:
    sides = {mark.made.position: (mark, other) for mark, other in _sides(composer.marks[place], "")}
    kept: list[Storage] = []
    for storage in composer.lists[place]:
        marks = sides.get(storage.made.position) if composer.category(storage) == MemoryPart.FROZEN_WEIGHTS else None
        if marks is None or not _takes(recipe, _whole(marks[0]), _whole(marks[1])):
            kept.append(storage)
            continue
        counts = _counts(_whole(marks[0]), _whole(marks[1]), constant(0))
        for number, piece in enumerate(recipe.bits):
            made = shifted(storage.made, number)
            kept.append(composer.of_piece(piece, _number(counts, piece), made, None, MemoryPart.FROZEN_WEIGHTS))
    composer.lists[place][:] = kept


def _sides(marks: Sequence[Mark], prefix: str) -> list[tuple[Mark, Mark]]:
    """Returns inputs and outputs of the marked layers, in the order of the step."""
    inputs, outputs = ([mark for mark in marks if mark.what == prefix + name] for name in ("inputs", "outputs"))
    return list(zip(inputs, outputs, strict=True))


def _takes(recipe: LayerRecipe, num_inputs: int, num_outputs: int) -> bool:
    fits = num_inputs % recipe.side_multiple == 0 and num_outputs % recipe.side_multiple == 0
    return fits and num_inputs * num_outputs % recipe.weights_multiple == 0


class _Results:
    """The storages of one list by when they are allocated, to find the results of products."""

    def __init__(self, composer: Composer, place: Place) -> None:
        self._composer, self._storages = composer, composer.lists[place]
        self._by_block: dict[tuple[int, str, int], list[tuple[int, int, int]]] = {}
        self._num_known = 0
        self.update()

    def update(self) -> None:
        """Adds the storages that were appended since."""
        for number in range(self._num_known, len(self._storages)):
            phase, block, _, offset, position, shift = self._storages[number].made
            insort(self._by_block.setdefault((phase, block, offset), []), (position, shift, number))
        self._num_known = len(self._storages)

    def rows(self, mark: Mark, num_results: int) -> Growth:
        """Returns the rows of a product, from its result: the last storage allocated in it."""
        phase, block, _, offset, position, shift = mark.made
        made = self._by_block.get((phase, block, offset), [])
        start = bisect_left(made, (position, shift))
        end = bisect_left(made, (mark.released.position, mark.released.shift + 1))
        last = max((number for _, _, number in made[start:end]), default=None)
        if last is None:
            return constant(0)
        return scaled(self._composer.growth(self._storages[last]), 1 / num_results / _BYTES_IN_COMPUTE_TYPE)


def _counts(num_inputs: int, num_outputs: int, rows: Growth) -> dict[Count, Growth]:
    return {
        "weights": constant(num_inputs * num_outputs),
        "inputs": constant(num_inputs),
        "outputs": constant(num_outputs),
        "samples": rows,
        "samples x inputs": scaled(rows, num_inputs),
        "samples x outputs": scaled(rows, num_outputs),
    }


def _add(
    composer: Composer,
    place: Place,
    mark: Mark,
    counts: dict[Count, Growth],
    pieces: Sequence[Piece],
    before: Sequence[Act],
    after: Sequence[Act],
) -> None:
    made: dict[int, Moment] = {}
    released: dict[int, Moment] = {}
    for start, shift, acts in ((mark.made, BEFORE, before), (mark.released, AFTER, after)):
        for number, act in enumerate(acts):
            (released if act.is_release else made)[act.piece] = shifted(start, shift + number)
    for index, piece in enumerate(pieces):
        composer.lists[place].append(composer.of_piece(piece, _number(counts, piece), made[index], released[index]))


def _number(counts: dict[Count, Growth], piece: Piece) -> Growth:
    return constant(1) if piece.count == "one" else counts[piece.count]


def _whole(mark: Mark) -> int:
    return round(mark.number.at((1, 1, 1, 1)))
