"""Blocks whose frozen weights wait on the host: what that takes of host and device, as `step.levers.swapping` does it.

While a block runs, copies of its weights are on the device, one block's at a time: none are fetched ahead. The block
gives them back when it has run and brings them again when it is recomputed for its backward pass. Blocks that are
not recomputed cannot be swapped: autograd would hold their weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foretune.choices.swapping import chosen_to_swap
from foretune.core.errors import Refused
from foretune.core.values.step_trace import NEVER, StepTrace, on_host
from foretune.core.vocabulary import MemoryPart, StepPhase


class SwapStorage(NamedTuple):
    """One storage of a step: its moments in the order of the whole step, its bytes, what it is, in which phases."""

    made: int
    released: int | None
    """None: never."""
    num_bytes: int
    category: str
    made_in: str
    released_in: str


@dataclass(frozen=True)
class SwappedUnit:
    """A unit of which blocks are swapped: mostly one block of one."""

    number: int
    num_swapped: int
    num_blocks: int


def swapped_units(units: Sequence[Sequence[int]], num_swapped: int) -> tuple[SwappedUnit, ...]:
    """The units that hold the blocks which training would choose."""
    num_blocks = sum(len(unit) for unit in units)
    if num_swapped > num_blocks:
        raise Refused(
            f"levers.block_swap: {num_swapped} blocks cannot be swapped, this model has {num_blocks}. "
            f"Nearest: levers.block_swap={num_blocks}"
        )
    chosen = set(chosen_to_swap(num_blocks, num_swapped))
    found = (SwappedUnit(number, len(chosen.intersection(unit)), len(unit)) for number, unit in enumerate(units))
    return tuple(unit for unit in found if unit.num_swapped)


def moved_bytes(trace: StepTrace, sizes: tuple[float, float, float, float], units: Sequence[SwappedUnit]) -> list[int]:
    """Bytes of the frozen weights that are on the host, for each of the units."""
    by_unit: list[float] = []
    for kind in trace.kinds:
        frozen = sum(
            trace.growths[storage.growth].at(sizes)
            for storage in kind.of_block(0, kind.count)
            if trace.categories[storage.category] == MemoryPart.FROZEN_WEIGHTS and storage.released.phase == NEVER
        )
        by_unit += [frozen] * kind.count
    return [round(by_unit[unit.number] * unit.num_swapped / unit.num_blocks) for unit in units]


def swapped(
    storages: Iterable[SwapStorage], unit: SwappedUnit, windows: Sequence[tuple[int, int]]
) -> Iterator[SwapStorage]:
    """The storages of a unit as they are when its weights are on the host. `windows`: when it runs, both ways.

    Blocks of a unit are taken to have equal weights: what is swapped is a share of each.
    """
    forward, backward = windows
    for storage in storages:
        if storage.category != MemoryPart.FROZEN_WEIGHTS or storage.released is not None:
            yield storage
            continue
        of_one_block = storage.num_bytes // unit.num_blocks
        moved = of_one_block * unit.num_swapped
        yield storage._replace(num_bytes=moved, category=on_host(MemoryPart.FROZEN_WEIGHTS))
        if moved < storage.num_bytes:
            yield storage._replace(num_bytes=storage.num_bytes - moved)
        # Forward the blocks of a unit run one after another; backward all of them are recomputed first.
        yield SwapStorage(*forward, of_one_block, MemoryPart.SWAPPED_WEIGHTS, StepPhase.FORWARD, StepPhase.FORWARD)
        yield SwapStorage(*backward, moved, MemoryPart.SWAPPED_WEIGHTS, StepPhase.BACKWARD, StepPhase.BACKWARD)
