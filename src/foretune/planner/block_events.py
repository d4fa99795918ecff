"""The storages of a trace at given sizes, as sorted lists of events: one for each place of the step.

All blocks that share a list of storages share these lists. Only where a list falls in the step, and the numbers of its
storages, differ from block to block. So a deep model costs little more than a shallow one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from foretune.core.values.step_trace import (
    MARK,
    NEVER,
    ROOM,
    STATE_8BIT,
    STATE_8BIT_SCALES,
    Moment,
    StepTrace,
    Storage,
    is_on_host,
    off_host,
    on_host,
)
from foretune.core.vocabulary import LASTING, MemoryPart
from foretune.planner.sharding import Gathering
from foretune.planner.swapping import SwappedUnit, SwapStorage

Sizes = tuple[float, float, float, float]

CUDA_ROUNDING_BYTES = 512
"""The CUDA allocator rounds every allocation up to this."""
PASSING, STAYS, LEFT, ON_HOST = range(4)
"""What becomes of a storage: released in the step; outlives it; left to be released after it; in host memory."""

_FP32_BYTES = 4
SMALLEST_IN_8_BITS, _WEIGHTS_PER_SCALE = 4096, 256
"""bitsandbytes keeps fp32 state for tensors of fewer weights, and an fp32 scale for each block of 8-bit state."""


class Event(NamedTuple):
    """An allocation (positive bytes) or release (zero bytes) of a storage."""

    storage: int
    num_bytes: int
    category: str
    phase: str


# Creates a named tuple in half the time of calling its class; a plan makes hundreds of thousands.
_new = tuple.__new__


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Settings of a step that its trace was not recorded with."""

    chosen: frozenset[int] = frozenset()
    """Indices of the recomputed blocks, or units of neighbouring blocks."""
    accumulates: bool = False
    """Whether gradients of earlier passes exist from the start."""
    averages: bool = False
    """Whether every trained weight has an fp32 moving average."""
    averages_on_host: bool = False
    bytes_per_trained_weight: int = _FP32_BYTES
    swapped: tuple[SwappedUnit, ...] = ()
    """Units with blocks whose frozen weights are on the host."""
    has_buckets: bool = False
    """Whether DDP holds buckets beside the gradients."""
    num_shards: int = 1
    """Over how many devices weights, gradients and optimizer state are divided."""
    shard_widening: int = 1
    """2 if shards of weights, gradients and optimizer state are fp32, and the trace has them in bf16."""


Place = tuple[int, str, int, int, int]
"""Where in the step something happens: phase, block, kind and offset as in a `Moment`, and a carry: -1 for positions
before the first one of the place, which are the last ones of the place before.
"""
_AT_THE_START: Place = (-1, "none", 0, 0, 0)
"""Before every event of the step."""
Row = tuple[int, int, str, str]
"""An event; its storage is numbered within the block."""
_Entry = tuple[int, int, Row, int, int]
"""Position, index among the events of the block, the event, what becomes of its storage, change of live bytes."""


class StorageRows:
    """Events of one block at one place of the step, in order."""

    def __init__(self, entries: list[_Entry]) -> None:
        # At equal positions, the earlier storage comes first.
        entries.sort()
        self.entries = entries
        self.positions = [entry[0] for entry in entries]
        self.rows = [entry[2] for entry in entries]
        fates = [entry[3] for entry in entries]
        self.fates = fates if any(fates) else None
        """Of the storages; None if all of them are released in the step."""
        self.changes = [entry[4] for entry in entries]
        """Of the live bytes on the device, rounded."""

    def numbered(self, first: int) -> "EventList":
        """Returns the events, with storages numbered from `first` on."""
        events = [_new(Event, (first + index, *rest)) for index, *rest in self.rows]
        return EventList(self.positions, events, self.fates)


class EventList(NamedTuple):
    """Events at one place of the step, in order."""

    positions: list[int]
    events: list[Event]
    fates: list[int] | None


class Templates:
    """The storages of one trace at given sizes, by their place in the step."""

    def __init__(self, trace: StepTrace, sizes: Sizes, variant: Variant) -> None:
        self._trace, self._variant = trace, variant
        self._bytes = [max(0, round(growth.at(sizes))) for growth in trace.growths]
        self._names = [_name(category) for category in trace.categories]
        self._is_8bit = [off_host(category) == STATE_8BIT for category in trace.categories]
        self._on_host = [is_on_host(name) for name in trace.categories]
        self._made: dict[int, list[tuple[Place, StorageRows]]] = {}

    def of(self, storages: tuple[Storage, ...]) -> list[tuple[Place, StorageRows]]:
        if id(storages) not in self._made:
            by_place = self._listed(storages)
            self._made[id(storages)] = [(place, StorageRows(entries)) for place, entries in by_place.items()]
        return self._made[id(storages)]

    def _listed(self, storages: tuple[Storage, ...]) -> dict[Place, list[_Entry]]:
        phases, variant, listed = self._trace.phases, self._variant, _Listed()
        for made, released, growth, number in storages:
            num_bytes, category = self._bytes[growth], self._names[number]
            if not num_bytes or category is None:
                continue
            made_in = phases[made.phase]
            is_host = self._on_host[number]
            place, position = located(made)
            if category == MemoryPart.GRADIENTS and variant.accumulates and variant.num_shards == 1:
                # The pass allocates a gradient, adds it to the existing one, and frees it.
                start = (place, position, made_in)
                listed.add(num_bytes, MemoryPart.TEMPORARIES, start, (place, position + 1, made_in))
                place, position = _AT_THE_START, 0
            if category == MemoryPart.GRADIENTS and variant.has_buckets:
                listed.add(num_bytes, MemoryPart.COMMUNICATION, (_AT_THE_START, 0, made_in), None)
            end = None if released.phase == NEVER else (*located(released), phases[released.phase])
            for part_bytes in state_8bit_bytes(num_bytes) if self._is_8bit[number] else (num_bytes,):
                listed.add(part_bytes, category, (place, position, made_in), end, is_host=is_host)
            if category == MemoryPart.TRAINED_WEIGHTS and variant.averages:
                average_bytes = num_bytes * _FP32_BYTES // variant.bytes_per_trained_weight
                average = on_host(MemoryPart.EMA) if variant.averages_on_host else MemoryPart.EMA
                start = (_AT_THE_START, 0, made_in)
                listed.add(average_bytes, average, start, None, is_host=variant.averages_on_host)
        return listed.by_place


def _name(category: str) -> str | None:
    """Returns the category in a plan; None for marks, and for scales, which are added with their state."""
    if category.startswith(MARK) or off_host(category) == STATE_8BIT_SCALES:
        return None
    return category.replace(STATE_8BIT, MemoryPart.OPTIMIZER_STATE)


def state_8bit_bytes(num_weights: int) -> tuple[int, ...]:
    """Returns the bytes of each tensor that an 8-bit optimizer keeps of one average of so many weights."""
    if num_weights < SMALLEST_IN_8_BITS:
        return (num_weights * _FP32_BYTES,)
    return num_weights, -(-num_weights // _WEIGHTS_PER_SCALE) * _FP32_BYTES


_When = tuple[Place, int, str]
"""Place, position there, name of the phase."""


class _Listed:
    """Events of a block, sorted into their places."""

    def __init__(self) -> None:
        self.by_place: dict[Place, list[_Entry]] = {}
        self._num_storages = self._num_events = 0

    def add(self, num_bytes: int, category: str, made: _When, released: _When | None, *, is_host: bool = False) -> None:
        fate = PASSING
        if is_host:
            fate = ON_HOST
        elif released is None:
            fate = STAYS if category in LASTING else LEFT
        change = 0 if is_host else -(-num_bytes // CUDA_ROUNDING_BYTES) * CUDA_ROUNDING_BYTES
        place, position, phase = made
        row = (self._num_storages, num_bytes, category, phase)
        self.by_place.setdefault(place, []).append((position, self._num_events, row, fate, change))
        if released is not None:
            place, position, phase = released
            row = (self._num_storages, 0, category, phase)
            self.by_place.setdefault(place, []).append((position, self._num_events + 1, row, fate, -change))
        self._num_storages += 1
        self._num_events += 2


def located(moment: Moment) -> tuple[Place, int]:
    """Returns the place of a moment, and its position there.

    Positions are even: an odd one is free between any two moments.
    """
    phase, block, kind, offset, position, shift = moment
    position = 2 * (position * ROOM + shift)
    return (phase, block, kind, offset, position >> POSITION_BITS), position & POSITIONS


class Placing:
    """Maps places to their order in a step of given depth.

    A slot is the phase, and the index of the block in it; slot and position form one integer, a storage's moment.
    """

    def __init__(self, counts: tuple[int, ...], backward_phases: Iterable[int]) -> None:
        self._counts, self._backward = counts, frozenset(backward_phases)
        self._starts = [sum(counts[:index]) for index in range(len(counts))]
        self._num_blocks = sum(counts)

    def slot(self, place: Place, number: int) -> int:
        """Returns where a place is for a block, by the block's index in the whole model."""
        phase, block, kind, offset, carry = place
        slot = (phase + 1 << _BLOCK_BITS) + carry
        if block == "none":
            return slot
        if block == "own":
            number += offset
        else:
            number = self._starts[kind] + (offset if block == "from start" else self._counts[kind] - 1 - offset)
        return slot + (self._num_blocks - number if phase in self._backward else number + 1)

    def gathering(self, forward: int, backward: int, number: int) -> Gathering:
        """Returns when a block's weights are gathered and its gradients reduced. Moments are odd: no others are."""
        start, end = self._around(forward, number)
        again, done = self._around(backward, number)
        is_last, is_first = number == self._num_blocks - 1, number == 0
        next_start = self.end_of(forward) if is_last else self._around(forward, number + 1)[0]
        ahead = again if is_last else self._around(backward, number + 1)[0] + 2 * _FILL_AHEAD
        next_done = self.end_of(backward) if is_first else self._around(backward, number - 1)[1]
        return Gathering(
            forward=(start + 2 * _COPY_OUT, end),
            forward_buffer=(start, next_start + 2 * _COPIED),
            backward=(again + 2 * _COPY_OUT, done),
            backward_buffer=(ahead, again + 2 * _COPIED),
            gradients_until=done + 2 * _REDUCED,
            reducing=(done + 2 * _REDUCE, next_done + 2),
            reduced_from=done + 2 * _REDUCED + 2,
        )

    def gathering_outside(self, forward: int, backward: int) -> Gathering:
        """Returns the same for the weights outside the blocks."""
        start, done = self._start_of(forward), self.end_of(backward)
        return Gathering(
            forward=(start + 2 * _COPY_OUT, done),
            forward_buffer=(start, self._around(forward, 0)[0] + 2 * _COPIED),
            backward=None,
            backward_buffer=None,
            gradients_until=done + 2 * _REDUCED,
            reducing=(done + 2 * _REDUCE, done + 2 * _REDUCED + 4),
            reduced_from=done + 2 * _REDUCED + 2,
        )

    def _start_of(self, phase: int) -> int:
        """Returns a moment before all events of a phase."""
        return (phase + 1 << _BLOCK_BITS << POSITION_BITS) - 2 * _ROOM_BEFORE - 1

    def end_of(self, phase: int) -> int:
        """Returns a moment after all events of a phase."""
        return (phase + 2 << _BLOCK_BITS << POSITION_BITS) - 2 * (_ROOM_BEFORE + _ROOM_AFTER) - 1

    def _around(self, phase: int, number: int) -> tuple[int, int]:
        """Returns moments before and after a block's events in a phase, with room for some after each."""
        first = self.slot((phase, "own", 0, 0, 0), number) << POSITION_BITS
        return first - 2 * _ROOM_BEFORE - 1, first + (1 << POSITION_BITS) - 2 * (_ROOM_BEFORE + _ROOM_AFTER) - 1

    def window(self, phase: int, number: int) -> tuple[int, int]:
        """Returns moments just before and just after a block's events in a phase, which nothing else uses."""
        first = self.slot((phase, "own", 0, 0, 0), number) << POSITION_BITS
        return first - 1, first + POSITIONS - 2


POSITION_BITS = 36
POSITIONS = (1 << POSITION_BITS) - 1
_BLOCK_BITS = 16
_ROOM_BEFORE = _ROOM_AFTER = 8
# Before a block runs: its buffer is there, its weights are copied out of it, the buffer of the block before (forward)
# or its own (backward) is freed, and the next one is filled. After its backward pass: the weights are freed, then the
# buffer of the block before; the gradients are copied into a buffer, freed, and reduced from there.
_COPY_OUT, _COPIED, _FILL_AHEAD = 2, 3, 4
_REDUCE, _REDUCED = 2, 3


def as_storages(placed: Iterable[tuple[int, StorageRows]]) -> list[SwapStorage]:
    """Returns the storages of a block from its events, with their moments in the whole step."""
    made: dict[int, SwapStorage] = {}
    released: dict[int, tuple[int, str]] = {}
    for slot, rows in placed:
        for position, (storage, num_bytes, category, phase) in zip(rows.positions, rows.rows, strict=True):
            moment = (slot << POSITION_BITS) + position
            if num_bytes:
                made[storage] = SwapStorage(moment, None, num_bytes, category, phase, "")
            else:
                released[storage] = moment, phase
    for storage, (moment, phase) in released.items():
        made[storage] = made[storage]._replace(released=moment, released_in=phase)
    return [made[storage] for storage in sorted(made)]


def as_rows(storages: Iterable[SwapStorage]) -> list[tuple[int, StorageRows]]:
    """Returns the events of a block from its storages, by slot."""
    listed = _Listed()
    for made, released, num_bytes, category, made_in, released_in in storages:
        start, end = _when(made, made_in), None if released is None else _when(released, released_in)
        listed.add(num_bytes, category, start, end, is_host=is_on_host(category))
    return [(place[0], StorageRows(entries)) for place, entries in listed.by_place.items()]


def _when(moment: int, phase: str) -> _When:
    """Returns a moment with its slot in place of a phase: it is of one block, so its place is known."""
    return (moment >> POSITION_BITS, "", 0, 0, 0), moment & POSITIONS, phase
