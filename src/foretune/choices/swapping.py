"""Which of the repeated blocks have their weights on the host, and when each is copied to the device: training and
planning ask the same functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


def chosen_to_swap(num_blocks: int, num_swapped: int) -> tuple[int, ...]:
    """So many of the blocks, spread evenly: of each kind about its share, and between two of them others run."""
    assert 0 <= num_swapped <= num_blocks
    return tuple(i for i in range(num_blocks) if (i + 1) * num_swapped // num_blocks > i * num_swapped // num_blocks)


class Residence(NamedTuple):
    """A stay of a block's weights on the device, from one copy to the release."""

    block: int
    copied_at: int
    """The use that begins when the copy is started."""
    last_use: int
    """The use after which the weights are released."""


@dataclass(frozen=True)
class SwapSchedule:
    """The order in which one training pass uses the swapped blocks, and how many of them are copied ahead.

    A use is numbered by its place in `uses`. When one begins, the copies of the next `prefetch` uses are started.
    Weights that one of these needs stay on the device; all others are released when their block has run.
    """

    forward: tuple[int, ...]
    """Numbers of the swapped blocks, in the order in which they run."""
    backward: tuple[int, ...]
    """The same blocks in the order in which they are recomputed."""
    prefetch: int

    @cached_property
    def uses(self) -> tuple[int, ...]:
        return self.forward + self.backward

    def ahead(self, use: int, *, trains: bool = True) -> tuple[int, ...]:
        """Returns the blocks that are on the device, or on their way, for later uses. Without training there is no
        backward pass.
        """
        end = len(self.uses) if trains else len(self.forward)
        return self.uses[use + 1 : min(end, use + 1 + self.prefetch)]

    def residences(self) -> tuple[Residence, ...]:
        """Returns every stay on the device in one pass, in the order of their ends."""
        found: dict[int, Residence] = {}
        ended: list[Residence] = []
        for use, block in enumerate(self.uses):
            before = found.get(block)
            if before is not None and use - before.last_use <= self.prefetch:
                found[block] = before._replace(last_use=use)
                continue
            if before is not None:
                ended.append(before)
            found[block] = Residence(block, max(0, use - self.prefetch), use)
        return tuple(sorted((*ended, *found.values()), key=lambda stay: stay.last_use))


def swap_schedule(units: Sequence[Sequence[int]], num_swapped: int, prefetch: int) -> SwapSchedule:
    """Returns the schedule for blocks in units that are recomputed together, the last unit first."""
    chosen = chosen_to_swap(sum(len(unit) for unit in units), num_swapped)
    swapped = frozenset(chosen)
    backward = tuple(block for unit in reversed(units) for block in unit if block in swapped)
    return SwapSchedule(chosen, backward, prefetch)
