"""The few numbers of step times that are learnt from published rows, and from when they are."""

from collections.abc import Mapping
from dataclasses import dataclass

from foretune.planner.timing.speed import Evidence
from foretune.planner.verdict import ErrorShares


@dataclass(frozen=True, kw_only=True)
class TimeConstants:
    """Multiples of what the tables and data sheets give."""

    device: float = 1.0
    """Time of kernels in a training beside their time in a short burst."""
    recomputing_operator: float = 1.0
    """Time of the host to issue an operator in a checkpointed block beside one elsewhere: hooks run for each saved
    tensor."""


def shipped_constants() -> TimeConstants:
    return TimeConstants()


_ERRORS: Mapping[Evidence, ErrorShares] = {
    "measured here": ErrorShares(0.15, 0.2),
    "kernel tables": ErrorShares(0.2, 0.3),
    "data sheet": ErrorShares(0.35, 0.6),
}
"""Chosen, not measured: no published step time has been compared with these yet."""


def time_error(evidence: Evidence) -> ErrorShares:
    """Returns how far a step time may be below and above the prediction, as shares of it."""
    return _ERRORS[evidence]
