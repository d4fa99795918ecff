"""What a search is for."""

from dataclasses import dataclass, field

from foretune.planner.search.best import Goal, PlanLimits
from foretune.planner.timing.terms import PUBLISHED, Terms


@dataclass(frozen=True, kw_only=True)
class Sought:
    """What is searched for."""

    goal: Goal
    limits: PlanLimits = field(default_factory=PlanLimits)
    min_batch: int = 1
    typed: frozenset[str] = frozenset()
    """Keys that stay as they are."""
    counts: tuple[int, ...] = (1,)
    """Numbers of devices."""
    terms: Terms = PUBLISHED
