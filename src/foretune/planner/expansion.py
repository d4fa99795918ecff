"""Expands a StepTrace at given sizes and depths: every storage of the step, in order, with its bytes."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from foretune.core.values.step_trace import MARK, NEVER, ROOM, Moment, StepTrace, Storage, on_host
from foretune.core.vocabulary import MemoryPart, StepPhase
from foretune.planner.swapping import SwappedUnit, SwapStorage, swapped

Sizes = tuple[float, float, float, float]

# Before every event of the step.
_AT_THE_START = 0
_FP32_BYTES = 4
# Creates a named tuple in half the time of calling its class; a plan makes hundreds of thousands.
_new = tuple.__new__


class Event(NamedTuple):
    """An allocation (positive bytes) or release (zero bytes) of a storage."""

    storage: int
    num_bytes: int
    category: str
    phase: str


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


def expand(
    trace: StepTrace, sizes: Sizes, counts: Sequence[int] | None = None, variant: Variant | None = None
) -> list[Event]:
    """Returns the events of a step with all blocks as in the trace.

    `counts` is the number of blocks of each kind, by default the model's own.
    """
    return _in_order(_expanded((trace, trace), sizes, counts, variant or Variant()))


def storages_at(
    trace: StepTrace, sizes: Sizes, counts: Sequence[int], variant: Variant, expansions: "Expansions"
) -> list[SwapStorage]:
    """Returns the storages of a step of another depth, not in the order of the step."""
    return _expanded((trace, trace), sizes, counts, variant, expansions)


class Expansions:
    """A cache of expanded blocks. Settings tried for one plan differ in few of them."""

    def __init__(self) -> None:
        self._templates: dict[Hashable, _Templates] = {}

    def templates(self, trace: StepTrace, sizes: Sizes, counts: tuple[int, ...], variant: Variant) -> "_Templates":
        key = (id(trace), sizes, counts, replace(variant, chosen=frozenset(), swapped=()))
        if key not in self._templates:
            placing = _Placing(counts, frozenset(trace.backward_phases))
            self._templates[key] = _Templates(trace, sizes, placing, variant)
        return self._templates[key]


def expand_variant(
    kept: StepTrace, checkpointed: StepTrace, sizes: Sizes, variant: Variant, expansions: Expansions | None = None
) -> list[Event]:
    """Returns the events of a step with some of the blocks checkpointed.

    Each block's storages come from the trace of its kind: no blocks checkpointed, or all. Storages outside the blocks
    do not depend on it.
    """
    return _in_order(_expanded((kept, checkpointed), sizes, None, variant, expansions))


def _expanded(
    traces: tuple[StepTrace, StepTrace],
    sizes: Sizes,
    counts: Sequence[int] | None,
    variant: Variant,
    expansions: Expansions | None = None,
) -> list[SwapStorage]:
    base, chosen = traces[0], variant.chosen
    assert all(trace.phases == base.phases for trace in traces), "both traces are of the same step"
    counts = tuple(kind.count for kind in base.kinds) if counts is None else tuple(counts)
    placing = _Placing(counts, frozenset(base.backward_phases))
    # Outside the blocks, a step that recomputes any of them is like one that recomputes all of them.
    outside = traces[1] if chosen else base
    expansions = expansions or Expansions()
    templates = {id(trace): expansions.templates(trace, sizes, counts, variant) for trace in traces}
    lives = list(templates[id(outside)].at(outside.outside, 0))
    on_the_host = {unit.number: unit for unit in variant.swapped}
    number = 0
    for index, count in enumerate(counts):
        for block in range(count):
            trace = traces[1] if number in chosen else traces[0]
            found = templates[id(trace)].at(trace.kinds[index].of_block(block, count), number)
            if number in on_the_host:
                windows = [
                    placing.window(base.phases.index(phase), number)
                    for phase in (StepPhase.FORWARD, StepPhase.BACKWARD)
                ]
                found = list(swapped(found, on_the_host[number], windows))
            lives += found
            number += 1
    return lives


def _in_order(lives: list[SwapStorage]) -> list[Event]:
    moments: list[int] = []
    events: list[Event] = []
    for storage, (made, released, num_bytes, category, made_in, released_in) in enumerate(lives):
        moments.append(made)
        events.append(_new(Event, (storage, num_bytes, category, made_in)))
        if released is not None:
            moments.append(released)
            events.append(_new(Event, (storage, 0, category, released_in)))
    return [events[index] for index in in_order_of(moments)]


def in_order_of(moments: Sequence[int]) -> list[int]:
    """Returns indices sorted by moment; at equal moments, the earlier storage first."""
    return sorted(range(len(moments)), key=moments.__getitem__)


class _Life(NamedTuple):
    """A storage that exists in every block of its kind: its moments move with the block."""

    made: int
    made_step: int
    """How much the moment moves from one block to the next."""
    released: int | None
    released_step: int
    num_bytes: int
    category: str
    made_in: str
    released_in: str

    def at(self, number: int) -> SwapStorage:
        """Returns the storage in a block, by the block's index in the whole model."""
        made, made_step, released, released_step, num_bytes, category, made_in, released_in = self
        if released is not None:
            released += number * released_step
        return _new(SwapStorage, (made + number * made_step, released, num_bytes, category, made_in, released_in))


class _Templates:
    """The storages of one trace at given sizes; blocks that share a list of them share the work."""

    def __init__(self, trace: StepTrace, sizes: Sizes, placing: "_Placing", variant: Variant) -> None:
        self._trace, self._placing, self._variant = trace, placing, variant
        self._bytes = [max(0, round(growth.at(sizes))) for growth in trace.growths]
        self._names = [None if name.startswith(MARK) else name for name in trace.categories]
        self._made: dict[int, list[_Life]] = {}
        self._placed: dict[tuple[int, int], list[SwapStorage]] = {}

    def at(self, storages: tuple[Storage, ...], number: int) -> list[SwapStorage]:
        """Returns the storages of a block, by its index in the whole model."""
        key = (id(storages), number)
        if key not in self._placed:
            self._placed[key] = [life.at(number) for life in self._of(storages)]
        return self._placed[key]

    def _of(self, storages: tuple[Storage, ...]) -> list[_Life]:
        if id(storages) not in self._made:
            self._made[id(storages)] = self._lives(storages)
        return self._made[id(storages)]

    def _lives(self, storages: tuple[Storage, ...]) -> list[_Life]:
        key, phases, variant = self._placing.key, self._trace.phases, self._variant
        lives: list[_Life] = []
        for made_at, released_at, growth, number in storages:
            num_bytes, category = self._bytes[growth], self._names[number]
            if not num_bytes or category is None:
                continue
            made, made_step = key(made_at)
            released, released_step, released_in = None, 0, ""
            if released_at.phase != NEVER:
                released, released_step = key(released_at)
                released_in = phases[released_at.phase]
            made_in = phases[made_at.phase]
            if category == MemoryPart.GRADIENTS and variant.accumulates:
                # The pass allocates a gradient, adds it to the existing one, and frees it.
                lives.append(
                    _Life(made, made_step, made + 1, made_step, num_bytes, MemoryPart.TEMPORARIES, made_in, made_in)
                )
                made, made_step = _AT_THE_START, 0
            lives.append(
                _new(_Life, (made, made_step, released, released_step, num_bytes, category, made_in, released_in))
            )
            if category == MemoryPart.TRAINED_WEIGHTS and variant.averages:
                average_bytes = num_bytes * _FP32_BYTES // variant.bytes_per_trained_weight
                average = on_host(MemoryPart.EMA) if variant.averages_on_host else MemoryPart.EMA
                lives.append(_Life(_AT_THE_START, 0, None, 0, average_bytes, average, made_in, ""))
        return lives


class _Placing:
    """Maps a moment to its position in the whole step: phase, index of the block in it, position within the block.

    The three form one integer. The increment per block, for moments of a storage's own block, is returned separately.
    """

    def __init__(self, counts: tuple[int, ...], backward_phases: frozenset[int]) -> None:
        self._counts, self._backward = counts, backward_phases
        self._starts = [sum(counts[:index]) for index in range(len(counts))]
        self._num_blocks = sum(counts)

    def key(self, moment: Moment) -> tuple[int, int]:
        """Returns the position for the model's first block, and the increment from one block to the next."""
        phase, block, kind, offset, position, shift = moment
        position = position * ROOM + shift
        if block == "none":
            return _key(phase, 0, position), 0
        is_backward = phase in self._backward
        if block == "own":
            place = self._num_blocks - offset if is_backward else offset + 1
            return _key(phase, place, position), -_ONE_BLOCK if is_backward else _ONE_BLOCK
        number = self._starts[kind] + (offset if block == "from start" else self._counts[kind] - 1 - offset)
        return _key(phase, self._num_blocks - number if is_backward else number + 1, position), 0

    def window(self, phase: int, number: int) -> tuple[int, int]:
        """Returns positions just before and just after a block's events in a phase, which nothing else uses."""
        place = self._num_blocks - number if phase in self._backward else number + 1
        return _key(phase, place, 0) - 1, _key(phase, place + 1, 0) - 3


# Positions are even, so that there is room between two of them.
_POSITION_BITS = 36
_BLOCK_BITS = 16
_ONE_BLOCK = 1 << _POSITION_BITS


def _key(phase: int, place: int, position: int) -> int:
    return (((phase + 1 << _BLOCK_BITS) + place) << _POSITION_BITS) + 2 * position
