"""Block swap: host and device memory of blocks whose frozen weights are on the host, as in `step.levers.swapping`.

When a swapped block begins, the copies of the next ones are started: how many is the experiment's choice, and all of it
is in `choices.swapping.SwapSchedule`. A block's weights are released after it has run, and copied again when it is
recomputed for its backward pass. Blocks without gradient checkpointing cannot be swapped: autograd would hold their
weights.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from foretune.choices.swapping import SwapSchedule, swap_schedule
from foretune.core.errors import Refused
from foretune.core.values.step_trace import StepTrace, on_host
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


class Stay(NamedTuple):
    """The time that a block's weights are on the device, by the units that run meanwhile."""

    copied_in: str
    """Phase in which the copy is started."""
    copied_with: int
    """The unit that runs then."""
    is_late: bool
    """Whether the copy takes the place of a block of that unit, after this one has run."""
    last_in: str
    """Phase and unit after which the weights are released."""
    last_with: int


@dataclass(frozen=True)
class SwappedUnit:
    """A unit with its swapped blocks: usually one of one."""

    number: int
    num_swapped: int
    num_blocks: int
    stays: tuple[Stay, ...] = ()
    """Of its swapped blocks. A block that takes the place of another of its unit and is released with it has none."""
    num_copies: int = 0
    """Copies of one block each in a forward and backward pass."""


def swapped_units(units: Sequence[Sequence[int]], num_swapped: int, prefetch: int) -> tuple[SwappedUnit, ...]:
    """Returns the units that contain the blocks which training would swap."""
    return _swapped_units(tuple(map(tuple, units)), num_swapped, prefetch)


@cache
def _swapped_units(units: tuple[tuple[int, ...], ...], num_swapped: int, prefetch: int) -> tuple[SwappedUnit, ...]:
    """A search asks for the same ones thousands of times: they depend on no device and no size."""
    num_blocks = sum(len(unit) for unit in units)
    if num_swapped > num_blocks:
        raise Refused(
            f"levers.block_swap: {num_swapped} blocks cannot be swapped, this model has {num_blocks}. "
            f"Nearest: levers.block_swap={num_blocks}"
        )
    if not num_swapped:
        return ()
    schedule = swap_schedule(units, num_swapped, prefetch)
    unit_of = {block: number for number, unit in enumerate(units) for block in unit}
    stays: dict[int, list[Stay]] = {}
    copies: dict[int, int] = {}
    for block, stay in _stays(schedule, unit_of):
        copies[unit_of[block]] = copies.get(unit_of[block], 0) + 1
        is_in_place = stay.is_late and (stay.copied_in, stay.copied_with) == (stay.last_in, stay.last_with)
        if not is_in_place:
            stays.setdefault(unit_of[block], []).append(stay)
    swapped = frozenset(schedule.forward)
    return tuple(
        SwappedUnit(
            number, len(swapped.intersection(unit)), len(unit), tuple(stays.get(number, ())), copies.get(number, 0)
        )
        for number, unit in enumerate(units)
        if swapped.intersection(unit)
    )


def _stays(schedule: SwapSchedule, unit_of: dict[int, int]) -> Iterator[tuple[int, Stay]]:
    num_forward = len(schedule.forward)
    moments = [
        (StepPhase.FORWARD if use < num_forward else StepPhase.BACKWARD, unit_of[block])
        for use, block in enumerate(schedule.uses)
    ]
    begins = [True, *(before != after for before, after in pairwise(moments))]
    for block, copied_at, last_use in schedule.residences():
        phase, unit = moments[copied_at]
        # Forward, the blocks of a unit run one after another; backward, all of them are recomputed first.
        is_late = not begins[copied_at] and phase == StepPhase.FORWARD
        yield block, Stay(phase, unit, is_late, *moments[last_use])


def moved_bytes(trace: StepTrace, sizes: tuple[float, float, float, float], units: Sequence[SwappedUnit]) -> list[int]:
    """Returns the bytes of frozen weights on the host, for each unit."""
    by_unit: list[float] = []
    for kind, growths in zip(trace.kinds, trace.frozen_growths, strict=True):
        by_unit += [sum(growth.at(sizes) for growth in growths)] * kind.count
    return [round(by_unit[unit.number] * unit.num_swapped / unit.num_blocks) for unit in units]


def copied_bytes(trace: StepTrace, sizes: tuple[float, float, float, float], units: Sequence[SwappedUnit]) -> int:
    """Returns the bytes that a forward and backward pass copies to the device."""
    moved = moved_bytes(trace, sizes, units)
    return sum(num_bytes // unit.num_swapped * unit.num_copies for num_bytes, unit in zip(moved, units, strict=True))


def most_on_device_bytes(moved: Sequence[int], units: Sequence[SwappedUnit], prefetch: int) -> int:
    """Returns the most swapped weights that a forward pass has on the device. `moved`: from `moved_bytes`."""
    blocks = [
        num_bytes // unit.num_swapped
        for num_bytes, unit in zip(moved, units, strict=True)
        for _ in range(unit.num_swapped)
    ]
    return max((sum(blocks[first : first + prefetch + 1]) for first in range(len(blocks))), default=0)


Windows = Callable[[str, int], tuple[int, int]]
"""Returns when a unit runs in a phase: just before and just after its events."""


def swapped(storages: Iterable[SwapStorage], unit: SwappedUnit, windows: Windows) -> Iterator[SwapStorage]:
    """Yields the storages of a unit whose weights are on the host.

    Blocks of a unit are assumed to have equal weights, so that a share of each storage is swapped.
    """
    for storage in storages:
        if storage.category != MemoryPart.FROZEN_WEIGHTS or storage.released is not None:
            yield storage
            continue
        of_one_block = storage.num_bytes // unit.num_blocks
        moved = of_one_block * unit.num_swapped
        yield storage._replace(num_bytes=moved, category=on_host(MemoryPart.FROZEN_WEIGHTS))
        if moved < storage.num_bytes:
            yield storage._replace(num_bytes=storage.num_bytes - moved)
        for stay in unit.stays:
            yield SwapStorage(
                made=windows(stay.copied_in, stay.copied_with)[stay.is_late],
                released=windows(stay.last_in, stay.last_with)[1],
                num_bytes=of_one_block,
                category=MemoryPart.SWAPPED_WEIGHTS,
                made_in=stay.copied_in,
                released_in=stay.last_in,
            )
