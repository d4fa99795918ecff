"""A StepTrace run at given sizes and depths: every storage of the step, in order, with its bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foretune.core.values.step_trace import NEVER, Moment, StepTrace, Storage

Sizes = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Event:
    """A storage is made (its bytes are positive) or released (they are zero)."""

    storage: int
    num_bytes: int
    category: int
    phase: int


def expand(trace: StepTrace, sizes: Sizes, counts: Sequence[int] | None = None) -> list[Event]:
    """The events of a step. `counts` are the blocks of each kind; left out, the model's own."""
    counts = tuple(kind.count for kind in trace.kinds) if counts is None else tuple(counts)
    starts = [sum(counts[:index]) for index in range(len(counts))]
    num_blocks = sum(counts)
    bytes_of = [max(0, round(growth.at(sizes))) for growth in trace.growths]
    keyed: list[tuple[tuple[int, int, int, int], Event]] = []
    for number, (storage, kind, block) in enumerate(_instances(trace, counts)):
        if not bytes_of[storage.growth]:
            continue
        made = _key(storage.made, kind, block, starts, counts, num_blocks, trace.backward_phases)
        event = Event(number, bytes_of[storage.growth], storage.category, storage.made.phase)
        keyed.append(((*made, number), event))
        if storage.released.phase != NEVER:
            released = _key(storage.released, kind, block, starts, counts, num_blocks, trace.backward_phases)
            keyed.append(((*released, number), Event(number, 0, storage.category, storage.released.phase)))
    keyed.sort(key=lambda pair: pair[0])
    return [event for _, event in keyed]


def _instances(trace: StepTrace, counts: Sequence[int]) -> Iterator[tuple[Storage, int, int]]:
    """Every storage with the kind and the number (within its kind) of the block it belongs to."""
    for storage in trace.outside:
        yield storage, -1, -1
    for index, (kind, count) in enumerate(zip(trace.kinds, counts, strict=True)):
        for block in range(count):
            for storage in kind.of_block(block, count):
                yield storage, index, block


def _key(
    moment: Moment,
    kind: int,
    block: int,
    starts: Sequence[int],
    counts: Sequence[int],
    num_blocks: int,
    backward_phases: Sequence[int],
) -> tuple[int, int, int]:
    """Where a moment stands in the order of the whole step: phase, place of the block in it, place within the block."""
    if moment.block == "none":
        return moment.phase, 0, moment.position
    if moment.block == "own":
        number = starts[kind] + block + moment.offset
    elif moment.block == "from start":
        number = starts[moment.kind] + moment.offset
    else:
        number = starts[moment.kind] + counts[moment.kind] - 1 - moment.offset
    place = num_blocks - number if moment.phase in backward_phases else number + 1
    return moment.phase, place, moment.position
