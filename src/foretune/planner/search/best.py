"""Best first: bounds before times, times before replays, so that few of many options are looked at in full."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from foretune.planner.search.options import Option
from foretune.planner.timing.job import JobTotals
from foretune.planner.timing.speed import NotKnown

Goal = Literal["cheapest", "fastest", "smallest"]
GOALS: tuple[Goal, ...] = ("cheapest", "fastest", "smallest")
_Rank = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """What an answer must keep."""

    deadline_s: float | None = None
    """Of the whole job."""
    budget_usd: float | None = None

    def allow(self, totals: JobTotals) -> bool:
        """Also right for lower bounds: what they rule out is ruled out."""
        if self.deadline_s is not None and totals.total_s > self.deadline_s:
            return False
        return self.budget_usd is None or (totals.usd is not None and totals.usd <= self.budget_usd)


@dataclass
class Effort:
    """How much of a space was looked at."""

    num_options: int = 0
    num_timed: int = 0
    num_replayed: int = 0
    timed: set[int] = field(default_factory=set)
    replayed: set[int] = field(default_factory=set)
    without_time: set[int] = field(default_factory=set)
    """Identities of options."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Options without a time, by what is not known."""

    def totals_of(self, option: Option) -> JobTotals | None:
        try:
            if id(option) not in self.timed:
                self.timed.add(id(option))
                self.num_timed += 1
            return option.totals
        except NotKnown as missing:
            self.unknown[str(missing)] += id(option) not in self.without_time
            self.without_time.add(id(option))
            return None

    def fits(self, option: Option) -> bool:
        if id(option) not in self.replayed:
            self.replayed.add(id(option))
            self.num_replayed += 1
        return option.fits


def rank(goal: Goal, option: Option, totals: JobTotals) -> _Rank | None:
    """Returns what the goal makes least, for a bound or for a time; None if the option cannot be ranked."""
    if goal == "fastest":
        return (totals.total_s, totals.usd or 0.0)
    if goal == "cheapest":
        return None if totals.usd is None else (totals.usd, totals.total_s)
    return (option.place.usable_bytes, totals.total_s)


def in_order(
    options: Iterable[Option], goal: Goal, effort: Effort, useful: Callable[[Option, JobTotals], bool]
) -> Iterator[Option]:
    """Yields options from the best on. What is not `useful` is dropped, before it is timed if its bounds show it."""
    numbers = count()
    # Equally ranked options in the order of their names, and bounds before times: a bound may become any of them.
    heap: list[tuple[_Rank, int, tuple[str, str], int, Option]] = []

    def push(option: Option, totals: JobTotals, *, is_bound: bool) -> None:
        found = rank(goal, option, totals) if useful(option, totals) else None
        if found is not None:
            name = ("", "") if is_bound else option.key
            heapq.heappush(heap, (found, 0 if is_bound else 1, name, next(numbers), option))

    for option in options:
        push(option, option.least, is_bound=True)
    while heap:
        _, is_timed, _, _, option = heapq.heappop(heap)
        if is_timed:
            if useful(option, option.totals):
                yield option
        elif useful(option, option.least):
            totals = effort.totals_of(option)
            if totals is not None:
                push(option, totals, is_bound=False)


def front_of(options: Iterable[Option], limits: PlanLimits, effort: Effort) -> tuple[Option, ...]:
    """Returns the options that fit and of which no other is both faster and cheaper, the fastest first."""
    front: list[Option] = []
    least_usd = float("inf")

    def useful(_: Option, totals: JobTotals) -> bool:
        return limits.allow(totals) and totals.usd is not None and totals.usd < least_usd

    for option in in_order(options, "fastest", effort, useful):
        if effort.fits(option):
            front.append(option)
            least_usd = option.totals.usd or 0.0
    return tuple(front)


def best_of(
    options: Iterable[Option], goal: Goal, limits: PlanLimits, effort: Effort
) -> tuple[Option | None, Option | None]:
    """Returns the best option that fits, and the best of the others on another device, or else with other settings."""
    best: Option | None = None
    other: Option | None = None

    def useful(_: Option, totals: JobTotals) -> bool:
        return limits.allow(totals)

    for option in in_order(options, goal, effort, useful):
        if best is not None and option.place is best.place and (other is not None or goal != "smallest"):
            continue
        if not effort.fits(option):
            continue
        if best is None:
            best = option
        elif option.place is not best.place:
            return best, option
        else:
            other = option
    return best, other
