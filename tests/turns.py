"""In CI, tests that are alike, and long proofs, take turns: a fifth of them each day, all of them in five days.

`@pytest.mark.takes_turns` is for tests that ask the same question about many models, methods or pages, and for those
that take most of a minute. Together they would take longer than everything else. Elsewhere, and with
FORETUNE_PROOFS=full, all run.
"""

import os
from collections.abc import Sequence

import pytest

from tests.proofs.rotation import how_to_repeat, turn

MARKER = "takes_turns"
VARIABLE = "FORETUNE_TAKE_TURNS"
NUM_TURNS = 5


def are_taken() -> bool:
    return bool(os.environ.get(VARIABLE)) and os.environ.get("FORETUNE_PROOFS") != "full"


def in_turn(items: Sequence[pytest.Item], number: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that run in a turn, and the others. Counted through all files, because many have one such test only."""
    marked = [item for item in items if item.get_closest_marker(MARKER) is not None]
    others = [item for place, item in enumerate(marked) if place % NUM_TURNS != number % NUM_TURNS]
    left_out = set(map(id, others))
    return [item for item in items if id(item) not in left_out], others


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
