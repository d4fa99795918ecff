"""Block swap: host and device memory of blocks whose frozen weights are on the host, as in `step.levers.swapping`.

While a block runs, copies of its weights are on the device, one block's at a time: there is no prefetching. The block
frees them after it has run and fetches them again when it is recomputed for its backward pass. Blocks without gradient
checkpointing cannot be swapped: autograd would hold their weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foretune.choices.swapping import chosen_to_swap
from foretune.core.errors import Refused
from foretune.core.values.step_trace import NEVER, StepTrace, on_host
from foretune.core.vocabulary import MemoryPart, StepPhase


class SwapStorage(NamedTuple):
    """One storage of a step: its moments in the whole step, bytes, category and phases."""

    made: int
    released: int | None
    """None means never."""
    num_bytes: int
    category: str
    made_in: str
    released_in: str


@dataclass(frozen=True)
class SwappedUnit:
    """A unit with its swapped blocks: usually one of one."""

    number: int
    num_swapped: int
    num_blocks: int


def swapped_units(units: Sequence[Sequence[int]], num_swapped: int) -> tuple[SwappedUnit, ...]:
    """Returns the units that contain the blocks which training would swap."""
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
    """Returns the bytes of frozen weights on the host, for each unit."""
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
    """Yields the storages of a unit whose weights are on the host. `windows`: when it runs, forward and backward.

    Blocks of a unit are assumed to have equal weights, so that a share of each storage is swapped.
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
        # Forward, the blocks of a unit run one after another; backward, all of them are recomputed first.
        yield SwapStorage(*forward, of_one_block, MemoryPart.SWAPPED_WEIGHTS, StepPhase.FORWARD, StepPhase.FORWARD)
        yield SwapStorage(*backward, moved, MemoryPart.SWAPPED_WEIGHTS, StepPhase.BACKWARD, StepPhase.BACKWARD)
