"""A StepTrace run at given sizes and depths: every storage of the step, in order, with its bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foretune.core.values.step_trace import MARK, NEVER, Moment, StepTrace, Storage, on_host
from foretune.plan.swapping import Placed, SwappedUnit, swapped

Sizes = tuple[float, float, float, float]

# Before everything that happens in the step.
_AT_THE_START = 0
_FP32_BYTES = 4


class Event(NamedTuple):
    """A storage is made (its bytes are positive) or released (they are zero)."""

    storage: int
    num_bytes: int
    category: str
    phase: str


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a step may have beside what its trace was recorded with."""

    chosen: frozenset[int] = frozenset()
    """Numbers of the blocks, or units of neighbouring blocks, that are computed again."""
    accumulates: bool = False
    """Gradients of earlier passes are there from the start."""
    averages: bool = False
    """An fp32 moving average stands beside every trained weight."""
    averages_on_host: bool = False
    bytes_per_trained_weight: int = _FP32_BYTES
    swapped: tuple[SwappedUnit, ...] = ()
    """Units with blocks whose frozen weights are on the host."""


def expand(trace: StepTrace, sizes: Sizes, counts: Sequence[int] | None = None) -> list[Event]:
    """The events of a step. `counts` are the blocks of each kind; left out, the model's own."""
    return _expanded((trace, trace), sizes, counts, Variant())


def expand_counted(trace: StepTrace, sizes: Sizes, counts: Sequence[int], variant: Variant) -> list[Event]:
    """The events of a step of another depth, with all blocks as they are in the trace."""
    return _expanded((trace, trace), sizes, counts, variant)


def expand_variant(kept: StepTrace, checkpointed: StepTrace, sizes: Sizes, variant: Variant) -> list[Event]:
    """The events of a step of which some of the blocks are checkpointed.

    Each block's storages are taken from the trace in which it is what it is here: all blocks kept, or all computed
    again. What is outside of the blocks does not depend on it.
    """
    return _expanded((kept, checkpointed), sizes, None, variant)


def _expanded(
    traces: tuple[StepTrace, StepTrace],
    sizes: Sizes,
    counts: Sequence[int] | None,
    variant: Variant,
) -> list[Event]:
    base, chosen = traces[0], variant.chosen
    assert all(trace.phases == base.phases for trace in traces), "both traces are of the same step"
    counts = tuple(kind.count for kind in base.kinds) if counts is None else tuple(counts)
    placing = _Placing(counts, frozenset(base.backward_phases))
    # Outside of the blocks, a step that computes any of them again is like one that computes all of them again.
    outside = traces[1] if chosen else base
    templates = {id(trace): _Templates(trace, sizes, placing, variant) for trace in traces}
    lives = [life.at(0) for life in templates[id(outside)].of(outside.outside, 0)]
    on_the_host = {unit.number: unit for unit in variant.swapped}
    number = 0
    for index, count in enumerate(counts):
        for block in range(count):
            trace = traces[1] if number in chosen else traces[0]
            found = [
                life.at(number) for life in templates[id(trace)].of(trace.kinds[index].of_block(block, count), index)
            ]
            if number in on_the_host:
                windows = [placing.window(base.phases.index(phase), number) for phase in ("forward", "backward")]
                found = list(swapped(found, on_the_host[number], windows))
            lives += found
            number += 1
    return _in_order(lives)


def _in_order(lives: list[Placed]) -> list[Event]:
    keyed: list[tuple[int, int, Event]] = []
    for storage, (made, released, num_bytes, category, made_in, released_in) in enumerate(lives):
        keyed.append((made, storage, Event(storage, num_bytes, category, made_in)))
        if released is not None:
            keyed.append((released, storage, Event(storage, 0, category, released_in)))
    # No two events of one storage have the same key, so events themselves are never compared.
    keyed.sort()
    return [event for _, _, event in keyed]


@dataclass(frozen=True, slots=True)
class _Life:
    """A storage as it is in every block of its kind: its moments move with the block."""

    made: int
    made_step: int
    """How much the moment moves from one block to the next."""
    released: int | None
    released_step: int
    num_bytes: int
    category: str
    made_in: str
    released_in: str

    def at(self, number: int) -> Placed:
        """In the how-manieth block of the whole model."""
        released = None if self.released is None else self.released + number * self.released_step
        made = self.made + number * self.made_step
        return Placed(made, released, self.num_bytes, self.category, self.made_in, self.released_in)


class _Templates:
    """The storages of one trace at given sizes; blocks that share a list of them share the work."""

    def __init__(self, trace: StepTrace, sizes: Sizes, placing: "_Placing", variant: Variant) -> None:
        self._trace, self._placing, self._variant = trace, placing, variant
        self._bytes = [max(0, round(growth.at(sizes))) for growth in trace.growths]
        self._made: dict[int, list[_Life]] = {}

    def of(self, storages: tuple[Storage, ...], kind: int) -> list[_Life]:
        if id(storages) not in self._made:
            self._made[id(storages)] = [life for storage in storages for life in self._lives(storage, kind)]
        return self._made[id(storages)]

    def _lives(self, storage: Storage, kind: int) -> Iterator[_Life]:
        num_bytes = self._bytes[storage.growth]
        trace, variant = self._trace, self._variant
        category = trace.categories[storage.category]
        if not num_bytes or category.startswith(MARK):
            return
        made, made_step = self._placing.key(storage.made, kind)
        released, released_step, released_in = None, 0, ""
        if storage.released.phase != NEVER:
            released, released_step = self._placing.key(storage.released, kind)
            released_in = trace.phases[storage.released.phase]
        made_in = trace.phases[storage.made.phase]
        if category == "gradients" and variant.accumulates:
            # The pass makes a gradient, adds it to what is there, and lets it go.
            yield _Life(made, made_step, made + 1, made_step, num_bytes, "temporaries", made_in, made_in)
            made, made_step = _AT_THE_START, 0
        yield _Life(made, made_step, released, released_step, num_bytes, category, made_in, released_in)
        if category == "trained weights" and variant.averages:
            average_bytes = num_bytes * _FP32_BYTES // variant.bytes_per_trained_weight
            average = on_host("moving average") if variant.averages_on_host else "moving average"
            yield _Life(_AT_THE_START, 0, None, 0, average_bytes, average, made_in, "")


class _Placing:
    """Where a moment stands in the order of the whole step: phase, place of the block in it, place within the block.

    The three are one number. What a moment of a storage's own block adds for each further block is given apart.
    """

    def __init__(self, counts: tuple[int, ...], backward_phases: frozenset[int]) -> None:
        self._counts, self._backward = counts, backward_phases
        self._starts = [sum(counts[:index]) for index in range(len(counts))]
        self._num_blocks = sum(counts)

    def key(self, moment: Moment, kind: int) -> tuple[int, int]:
        """Of a storage of the model's first block, and the step from one block to the next."""
        if moment.block == "none":
            return _key(moment.phase, 0, moment.position), 0
        is_backward = moment.phase in self._backward
        if moment.block == "own":
            place = self._num_blocks - moment.offset if is_backward else moment.offset + 1
            return _key(moment.phase, place, moment.position), -_ONE_BLOCK if is_backward else _ONE_BLOCK
        if moment.block == "from start":
            number = self._starts[moment.kind] + moment.offset
        else:
            number = self._starts[moment.kind] + self._counts[moment.kind] - 1 - moment.offset
        return _key(moment.phase, self._num_blocks - number if is_backward else number + 1, moment.position), 0

    def window(self, phase: int, number: int) -> tuple[int, int]:
        """Just before and just after all that a block does in a phase; nothing else has these moments."""
        place = self._num_blocks - number if phase in self._backward else number + 1
        return _key(phase, place, 0) - 1, _key(phase, place + 1, 0) - 3


# Positions are even, so that something can stand between two of them.
_POSITION_BITS = 24
_BLOCK_BITS = 16
_ONE_BLOCK = 1 << _POSITION_BITS


def _key(phase: int, place: int, position: int) -> int:
    return (((phase + 1 << _BLOCK_BITS) + place) << _POSITION_BITS) + 2 * position
