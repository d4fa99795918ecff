"""Routine runs take a few of many in turn, so that all are met; a run says which turn it was and can be repeated."""

import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from typing import TypeVar

Row = TypeVar("Row")

VARIABLE = "FORETUNE_PROOFS_TURN"
_DAY_S = 24 * 60 * 60


def turn() -> int:
    """The number that decides which are taken: a new one each day (UTC), or the one in the environment."""
    given = os.environ.get(VARIABLE)
    return int(time.time() // _DAY_S) if given is None else int(given)


def places(number: int, num_taken: int) -> Iterator[int]:
    """The places of a turn in a row that never ends: each turn goes on where the one before it stopped."""
    return iter(range(number * num_taken, (number + 1) * num_taken))


def rows_of_turn(
    rows: Sequence[Row], values_of: Callable[[Row], Set[Hashable]], number: int, num_taken: int
) -> list[Row]:
    """The next rows in turn, and others until each value that any row has is in one of them.

    Those others are looked for from the turn's place on, so that they change with it, too.
    """
    *first, last = (place % len(rows) for place in places(number, num_taken))
    taken = [rows[place] for place in (*first, last)]
    missing = set[Hashable]().union(*map(values_of, rows)).difference(*map(values_of, taken))
    from_here = [*rows[last:], *rows[:last]]
    while missing:
        taken.append(max(from_here, key=lambda row: len(values_of(row) & missing)))
        missing -= values_of(taken[-1])
    return taken


def how_to_repeat(number: int) -> str:
    """For the line that a proof prints."""
    return f"turn {number}, again with {VARIABLE}={number}"
