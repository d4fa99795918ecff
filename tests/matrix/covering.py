"""Few cells of the capability matrix in which every pair of values that goes together occurs."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from foretune.choices.matrix import Cell

Pair = tuple[tuple[int, str], tuple[int, str]]
"""Two values, each with the number of its axis."""

_MOST_TRIES = 12


@dataclass
class Covering:
    """The cells that were chosen, and the pairs of which no supported cell was found."""

    cells: list[Cell] = field(default_factory=list)
    unsupported: list[Pair] = field(default_factory=list)


def pairs_of(cell: Cell) -> Iterator[Pair]:
    yield from itertools.combinations(enumerate(cell), 2)


def cover(axes: Sequence[Sequence[str]], is_supported: Callable[[Cell], bool], seed: int = 0) -> Covering:
    """Every pair is in a cell, or in none that is supported as far as the search saw.

    A pair is first tried with the usual value of all other axes, then with other ones by chance; a cell that is found
    is filled with values whose pairs are still lacking.
    """
    chance = random.Random(seed)
    lacking = {
        ((i, a), (j, b))
        for i, j in itertools.combinations(range(len(axes)), 2)
        for a, b in itertools.product(axes[i], axes[j])
    }
    found = Covering()
    for pair in sorted(lacking):
        if pair not in lacking:
            continue
        cell = _first_supported(axes, pair, is_supported, chance)
        if cell is None:
            found.unsupported.append(pair)
            lacking.discard(pair)
            continue
        cell = _filled(axes, cell, pair, lacking, is_supported, chance)
        found.cells.append(cell)
        lacking -= set(pairs_of(cell))
    return found


def _first_supported(
    axes: Sequence[Sequence[str]], pair: Pair, is_supported: Callable[[Cell], bool], chance: random.Random
) -> Cell | None:
    fixed = dict(pair)
    usual = tuple(fixed.get(index, values[0]) for index, values in enumerate(axes))
    # One other axis at a time: what a value needs beside it is mostly one thing.
    tries = [usual]
    for index, values in enumerate(axes):
        if index not in fixed:
            tries += [(*usual[:index], value, *usual[index + 1 :]) for value in values[1:]]
    for _ in range(_MOST_TRIES):
        tries.append(tuple(fixed.get(index, chance.choice(values)) for index, values in enumerate(axes)))
    return next((cell for cell in tries if is_supported(cell)), None)


def _filled(
    axes: Sequence[Sequence[str]],
    cell: Cell,
    pair: Pair,
    lacking: set[Pair],
    is_supported: Callable[[Cell], bool],
    chance: random.Random,
) -> Cell:
    fixed = dict(pair)
    free = [index for index in range(len(axes)) if index not in fixed]
    chance.shuffle(free)
    for index in free:
        best, most = cell, len(lacking & set(pairs_of(cell)))
        for value in chance.sample(list(axes[index]), len(axes[index])):
            other = (*cell[:index], value, *cell[index + 1 :])
            gain = len(lacking & set(pairs_of(other)))
            if gain > most and is_supported(other):
                best, most = other, gain
        cell = best
    return cell
