"""The order of measurements that take turns."""

from collections.abc import Iterator
from typing import Literal

Side = Literal["a", "b"]


def turns(num_repeats: int) -> Iterator[Side]:
    """a, b, b, a, a, b, ...: what drifts evenly meets both sides alike, and neither always comes second."""
    for number in range(num_repeats):
        yield from ("a", "b") if number % 2 == 0 else ("b", "a")
