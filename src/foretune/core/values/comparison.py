"""The judgement on two sets of runs. "No difference shown" is an answer."""

from typing import Literal

from foretune.core.values.base import Part, Value


class Interval(Part):
    """A range that holds the true value with the given confidence."""

    low: float
    high: float
    confidence: float = 0.95


class Comparison(Value):
    """How b relates to a in one quantity."""

    quantity: str
    unit: str
    runs_a: tuple[str, ...]
    runs_b: tuple[str, ...]
    ratio: float | None
    """b divided by a; None where there was too little to say."""
    interval: Interval | None
    """None is an absent spread, not a spread of zero."""
    answer: Literal["a is higher", "b is higher", "no difference shown", "inconclusive"]
    warnings: tuple[str, ...] = ()
