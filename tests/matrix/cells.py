"""The cells that stand for the whole matrix: every pair of choices that goes together is in one of them."""

import random
from collections.abc import Iterator
from functools import cache

from foretune.catalog import TRAINABLE
from foretune.choices.matrix import Cell, axes, refusals
from tests.matrix.covering import Covering, cover
from tests.proofs.rotation import rows_of_turn

_COMPILED = "compile"
"""A compiled cell takes half a minute, so it has cells of its own instead of a pair with everything."""
_NUM_IN_TURN = 8
"""Cells that a routine run takes because it is their turn; others complete them."""


@cache
def covering(family: str) -> Covering:
    """Two tables, made from other draws: most pairs are in several cells, in other company each time."""
    values = [tuple(value for value in axis if value != _COMPILED) for axis in axes().values()]
    is_supported = cache(lambda cell: not refusals(cell, family, "cpu"))
    first, second = (cover(values, is_supported, seed) for seed in range(2))
    cells = list(dict.fromkeys((*first.cells, *second.cells)))
    return Covering(cells, [pair for pair in first.unsupported if pair in second.unsupported])


def compiled_cells(family: str) -> list[Cell]:
    """The usual cell and one with an adapter, half of its blocks computed again, both compiled."""
    usual = {name: next(iter(values)) for name, values in axes().items()}
    lora = {"method": "lora", "precision": "bf16", "checkpointing": "half of the blocks"}
    found = [tuple({**usual, **changes, "lever": _COMPILED}.values()) for changes in ({}, lora)]
    return [cell for cell in found if not refusals(cell, family, "cpu")]


def all_cells() -> Iterator[tuple[str, Cell]]:
    """Each with its family."""
    for family in TRAINABLE:
        for cell in (*covering(family).cells, *compiled_cells(family)):
            yield family, cell


def routine_cells(turn: int) -> list[tuple[str, Cell]]:
    """Cells of a turn, among which each family has each value that it supports."""
    cells = [each for each in all_cells() if _COMPILED not in each[1]]
    random.Random(0).shuffle(cells)  # neighbours are alike
    return rows_of_turn(cells, _values, turn, _NUM_IN_TURN)


@cache
def _values(each: tuple[str, Cell]) -> frozenset[tuple[str, int, str]]:
    """What a cell stands for by itself: values of its family, each with the number of its axis."""
    family, cell = each
    return frozenset((family, index, value) for index, value in enumerate(cell))


def usual_cell() -> Cell:
    return tuple(next(iter(values)) for values in axes().values())


def name_of(family: str, cell: Cell) -> str:
    """What is not usual in it."""
    return "-".join((family, *(value for value, usual in zip(cell, usual_cell(), strict=True) if value != usual)))
