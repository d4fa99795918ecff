"""What a strategy is: which combinations to try next, given what came of those before."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from foretune.choices.sweep import AxisOption, Objective
from foretune.executors.outcome import OutcomeKind

Point = Mapping[str, AxisOption]
"""One combination: an option of each axis."""
NOT_FITTING: tuple[OutcomeKind, ...] = ("out of device memory", "out of host memory", "predicted not to fit")


@dataclass(frozen=True)
class MemoryExcess:
    """Memory that a combination is forecast to need beyond what it may take. Negative numbers fit."""

    low_bytes: float
    """If it needs as little as the forecast's error allows."""
    likely_bytes: float


@dataclass(frozen=True)
class PointResult:
    """What came of a combination, over its seeds."""

    labels: Mapping[str, str]
    kind: OutcomeKind
    """done where every seed is; otherwise the first outcome that is not."""
    scores: Mapping[Objective, float | None] = field(default_factory=dict)
    """Mean over the seeds; None where it was not measured."""


@dataclass(frozen=True)
class SearchSpace:
    """What there is to choose from."""

    options: Mapping[str, Sequence[AxisOption]]
    is_excluded: Callable[[Point], bool]
    estimate: Callable[[Point], MemoryExcess | None]
    """The memory forecast of a combination, where there is one and a limit to compare it with."""


class Strategy(Protocol):
    """Chooses combinations. It is asked again whenever a combination has ended."""

    num_planned: int | None
    """How many combinations it will try at most; None where that depends on the results."""

    def propose(self, results: Sequence[PointResult], num_free: Callable[[], int | None]) -> list[Point]:
        """Combinations to try now, none of them proposed before.

        An empty list while nothing runs ends the sweep.

        Args:
            results: all that have ended, in this order; those of an earlier start of the sweep too, once proposed.
            num_free: returns how many trials the executor could start now; None where it has a queue of its own.
        """
        ...
