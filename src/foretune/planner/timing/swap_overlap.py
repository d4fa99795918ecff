"""How much of block swap's traffic is hidden behind computation: the copies of one pass beside its blocks, in time.

Two things advance: computation, and one queue of copies. When a swapped block begins, the copies that its schedule asks
for are queued behind those that are still running, and the block waits for its own. What it waits is exposed; the rest
is hidden. Other traffic between host and device (offload of activations and optimizers) is not part of this: it runs on
the compute stream, and hides nothing here.

Not modelled: copies take a few percent of the memory bandwidth that kernels use meanwhile.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foretune.choices.swapping import SwapSchedule
from foretune.core.values.step_trace import StepTrace
from foretune.planner.timing.layout_facts import BlockSeconds, block_seconds
from foretune.planner.timing.work_times import LayoutFacts, Part


class PassPart(NamedTuple):
    """A stretch of computation."""

    block: int | None
    """The swapped block that begins here; None for all others."""
    seconds: float


def parts_of_pass(
    units: Sequence[Sequence[int]], seconds: Sequence[BlockSeconds], swapped: Collection[int]
) -> Iterator[PassPart]:
    """Yields a forward and backward pass; `seconds` are those of the units. All blocks are recomputed."""
    recomputed_s = [of_unit.forward_s / len(unit) for unit, of_unit in zip(units, seconds, strict=True)]

    def running(number: int) -> Iterator[PassPart]:
        for block in units[number]:
            yield PassPart(block if block in swapped else None, recomputed_s[number])

    for number in range(len(units)):
        yield from running(number)
    for number in reversed(range(len(units))):
        yield from running(number)
        yield PassPart(None, max(0.0, seconds[number].backward_s - seconds[number].forward_s))


def exposed_copy_s(parts: Iterable[PassPart], schedule: SwapSchedule, copy_s: Mapping[int, float]) -> float:
    """Returns the time in which a pass waits for copies. `copy_s`: of each swapped block."""
    now_s = queue_free_s = waited_s = 0.0
    arrival_s: dict[int, float] = {}
    use = -1
    for block, seconds in parts:
        ahead: tuple[int, ...] = ()
        if block is not None:
            use += 1
            ahead = schedule.ahead(use)
            for wanted in (block, *ahead):
                if wanted not in arrival_s:
                    queue_free_s = max(queue_free_s, now_s) + copy_s[wanted]
                    arrival_s[wanted] = queue_free_s
            waits_s = max(0.0, arrival_s[block] - now_s)
            waited_s += waits_s
            now_s += waits_s
        now_s += seconds
        if block is not None and block not in ahead:
            del arrival_s[block]
    return waited_s


@dataclass(frozen=True, kw_only=True)
class SwapCopies:
    """The copies of swapped blocks in a step of a device."""

    schedule: SwapSchedule
    units: tuple[tuple[int, ...], ...]
    copy_s: Mapping[int, float]
    """Of each swapped block, by its number."""
    num_passes: int
    trace: StepTrace
    facts: LayoutFacts

    @property
    def total_s(self) -> float:
        """Time of all copies of a step, exposed or hidden."""
        return self.num_passes * sum(self.copy_s[stay.block] for stay in self.schedule.residences())

    def exposed_s(self, seconds_of: Mapping[Part, float]) -> float:
        """Returns how long a step waits for copies. `seconds_of`: the device's own work, of all blocks and passes."""
        of_kind = block_seconds(self.trace, self.facts, seconds_of, self.num_passes)
        seconds = [of_kind[number] for number, kind in enumerate(self.trace.kinds) for _ in range(kind.count)]
        parts = parts_of_pass(self.units, seconds, frozenset(self.schedule.forward))
        return self.num_passes * exposed_copy_s(parts, self.schedule, self.copy_s)
