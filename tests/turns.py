"""In CI, tests that are alike, and long proofs, take turns: a fifth of them each day, all of them in five days.

Tests that ask the same question about many models or families take turns by themselves, so that one more family adds
little to the time of a run: each run asks every question about some families, and every family some of the questions.
`@pytest.mark.takes_turns` is for the same question about many methods or pages, and for tests that take most of a
minute. Elsewhere, and with FORETUNE_PROOFS=full, all run.
"""

import os
from collections import Counter
from collections.abc import Sequence

import pytest

from foretune import catalog
from tests.proofs.rotation import how_to_repeat, turn

MARKER = "takes_turns"
VARIABLE = "FORETUNE_TAKE_TURNS"
NUM_TURNS = 5
LEAST_ALIKE = 6
"""Tests of one function about so many models or families take turns without a mark."""


def are_taken() -> bool:
    return bool(os.environ.get(VARIABLE)) and os.environ.get("FORETUNE_PROOFS") != "full"


def in_turn(items: Sequence[pytest.Item], number: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that run in a turn, and the others. Counted through all files, because many have one such test only."""
    alike = Counter(_question(item) for item in items if _is_about_a_model(item))
    marked = [
        item
        for item in items
        if item.get_closest_marker(MARKER) is not None
        or (_is_about_a_model(item) and alike[_question(item)] >= LEAST_ALIKE)
    ]
    others = [item for place, item in enumerate(marked) if place % NUM_TURNS != number % NUM_TURNS]
    left_out = set(map(id, others))
    return [item for item in items if id(item) not in left_out], others


def _is_about_a_model(item: pytest.Item) -> bool:
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return any(
        isinstance(value, str) and (value in catalog.FAMILY_FACTS or value in catalog.denoisers()) for value in values
    )


def _question(item: pytest.Item) -> str:
    """The function of a test, without its parameters."""
    return item.nodeid.partition("[")[0]


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes those out of a run whose turn it is not."""
    if not are_taken():
        return
    items[:], others = in_turn(items, turn())
    if others:
        config.hook.pytest_deselected(items=others)


def header() -> str:
    """For the first lines of a run."""
    return f"tests marked {MARKER}: every fifth, {how_to_repeat(turn())}" if are_taken() else ""
