"""Routine runs take a few of many in turn, so that all are met; a run says which turn it was and can be repeated."""

import os
import time
from collections.abc import Iterator

VARIABLE = "FORETUNE_PROOFS_TURN"
_DAY_S = 24 * 60 * 60


def turn() -> int:
    """The number that decides which are taken: a new one each day (UTC), or the one in the environment."""
    given = os.environ.get(VARIABLE)
    return int(time.time() // _DAY_S) if given is None else int(given)


def places(number: int, num_taken: int) -> Iterator[int]:
    """The places of a turn in a row that never ends: each turn goes on where the one before it stopped."""
    return iter(range(number * num_taken, (number + 1) * num_taken))


def how_to_repeat(number: int) -> str:
    """For the line that a proof prints."""
    return f"turn {number}, again with {VARIABLE}={number}"
