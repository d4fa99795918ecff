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
NUM_IN_TURN = 8
"""Cells that a routine run takes because it is their turn; others complete them."""


@cache
def covering(family: str) -> Covering:
    """Cells that hold each pair of values that the family supports."""
    values = [tuple(value for value in axis if value != _COMPILED) for axis in axes().values()]
    is_supported = cache(lambda cell: not refusals(cell, family, "cpu"))
    return cover(values, is_supported)


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
    """Cells of a turn, among which are each family, each value, and each value of one family, which changes with it."""
    cells = [each for each in all_cells() if _COMPILED not in each[1]]
    random.Random(0).shuffle(cells)  # neighbours are alike
    whole = list(TRAINABLE)[turn % len(TRAINABLE)]
    return rows_of_turn(cells, lambda each: _values(each, whole), turn, NUM_IN_TURN)


@cache
def _values(each: tuple[str, Cell], whole: str) -> frozenset[tuple[str, int, str]]:
    """What a cell stands for by itself: its family, and values with the number of their axis, of one family apart."""
    family, cell = each
    any_family = {("", -1, family), *(("", index, value) for index, value in enumerate(cell))}
    return frozenset(any_family | {(family, *place) for place in enumerate(cell) if family == whole})


def usual_cell() -> Cell:
    return tuple(next(iter(values)) for values in axes().values())


def name_of(family: str, cell: Cell) -> str:
    """What is not usual in it."""
    return "-".join((family, *(value for value, usual in zip(cell, usual_cell(), strict=True) if value != usual)))
