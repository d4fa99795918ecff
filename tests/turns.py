"""In CI, tests that are alike, and slow ones, take turns: a twelfth of them each day, all of them in twelve.

Tests that ask the same question about many models or families take turns by themselves, so that one more family adds
little to the time of a run: each run asks every question about some families, and every family some of the questions.
So do tests that take long, by the list of `tests/slow_tests.json`; `@pytest.mark.every_run` is for those on which
everything else depends. `@pytest.mark.takes_turns` is for the same question about many methods or pages. Elsewhere,
and with FORETUNE_PROOFS=full, all run.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from foretune import catalog
from tests.proofs.rotation import how_to_repeat, turn
from tests.slow_tests import dealt

MARKER = "takes_turns"
EXEMPT = "every_run"
VARIABLE = "FORETUNE_TAKE_TURNS"
NUM_TURNS = 12
LEAST_ALIKE = 6
"""Tests of one function about so many models or families take turns without a mark."""
LEAST_SLOW_S = 2
"""So do tests that took so long when their seconds were last stored."""


def are_taken() -> bool:
    return bool(os.environ.get(VARIABLE)) and os.environ.get("FORETUNE_PROOFS") != "full"


def in_turn(
    items: Sequence[pytest.Item], number: int, seconds: Mapping[str, float]
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that run in a turn, and the others. Turns take about as long as one another."""
    alike = Counter(_question(item) for item in items if _is_about_a_model(item))
    waiting = [item for item in items if _takes_turns(item, alike, seconds)]
    chosen = set(map(id, dealt(waiting, NUM_TURNS, seconds)[number % NUM_TURNS]))
    left_out = {id(item) for item in waiting} - chosen
    return [item for item in items if id(item) not in left_out], [item for item in waiting if id(item) in left_out]


def _takes_turns(item: pytest.Item, alike: Mapping[str, int], seconds: Mapping[str, float]) -> bool:
    if item.get_closest_marker(EXEMPT) is not None:
        return False
    is_slow = seconds.get(item.nodeid, 0.0) >= LEAST_SLOW_S
    is_one_of_many = _is_about_a_model(item) and alike[_question(item)] >= LEAST_ALIKE
    return item.get_closest_marker(MARKER) is not None or is_slow or is_one_of_many


def _is_about_a_model(item: pytest.Item) -> bool:
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return any(
        isinstance(value, str) and (value in catalog.FAMILY_FACTS or value in catalog.denoisers()) for value in values
    )


def _question(item: pytest.Item) -> str:
    """The function of a test, without its parameters."""
    return item.nodeid.partition("[")[0]


def deselect(config: pytest.Config, items: list[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Takes those out of a run whose turn it is not."""
    if not are_taken():
        return
    items[:], others = in_turn(items, turn(), seconds)
    if others:
        config.hook.pytest_deselected(items=others)


def header() -> str:
    """For the first lines of a run."""
    return f"slow tests and many that are alike: every twelfth, {how_to_repeat(turn())}" if are_taken() else ""
