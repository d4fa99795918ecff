"""The few numbers of step times that are learnt from published rows, and from when they are."""

from dataclasses import dataclass


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
