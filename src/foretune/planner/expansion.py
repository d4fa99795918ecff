"""Expands a StepTrace at given sizes and depths: every storage of the step, in order, with its bytes."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

from foretune.core.values.step_trace import StepTrace, Storage
from foretune.core.vocabulary import StepPhase
from foretune.planner.block_events import (
    LEFT,
    ON_HOST,
    STAYS,
    Event,
    EventList,
    Placing,
    Sizes,
    StorageRows,
    Templates,
    Variant,
    as_rows,
    as_storages,
)
from foretune.planner.sharding import sharded
from foretune.planner.swapping import SwappedUnit, swapped

_Listed = TypeVar("_Listed")

# More storages than any block has.
_NUMBERS_PER_BLOCK = 1 << 20


@dataclass(frozen=True)
class StepEvents:
    """The events of one step, in order, by what becomes of their storages."""

    lasting: list[Event]
    """Allocations on the device that outlive the step."""
    passing: list[Event]
    """All other events on the device."""
    left: list[Event]
    """The allocations among `passing` that the step does not release."""
    on_host: list[Event]
    passing_bytes: Counter[str]
    """All that `passing` allocates, by category."""

    @cached_property
    def update_start(self) -> int:
        """Index of the first event of the optimizer's update in `passing`."""
        phases = [event.phase for event in self.passing]
        return phases.index(StepPhase.OPTIMIZER) if StepPhase.OPTIMIZER in phases else len(phases)


def expand(
    trace: StepTrace, sizes: Sizes, counts: Sequence[int] | None = None, variant: Variant | None = None
) -> list[Event]:
    """Returns the events of a step with all blocks as in the trace.

    `counts` is the number of blocks of each kind, by default the model's own.
    """
    expansion = _Expansion((trace, trace), sizes, counts, variant or Variant(), Expansions())
    return [event for part in expansion.parts() for event in part.events]


def expand_variant(kept: StepTrace, checkpointed: StepTrace, sizes: Sizes, variant: Variant) -> list[Event]:
    """Returns the events of a step with some of the blocks checkpointed.

    Each block's storages come from the trace of its kind: no blocks checkpointed, or all. Storages outside the blocks
    do not depend on it.
    """
    expansion = _Expansion((kept, checkpointed), sizes, None, variant, Expansions())
    return [event for part in expansion.parts() for event in part.events]


def expand_step(
    kept: StepTrace, checkpointed: StepTrace, sizes: Sizes, variant: Variant, expansions: "Expansions"
) -> StepEvents:
    """Returns the events of `expand_variant` by what becomes of their storages."""
    lasting: list[Event] = []
    passing: list[Event] = []
    left: list[Event] = []
    on_the_host: list[Event] = []
    passing_bytes: Counter[str] = Counter()
    for part in _Expansion((kept, checkpointed), sizes, None, variant, expansions).parts():
        lasting += part.by_fate.lasting
        passing += part.by_fate.passing
        left += part.by_fate.left
        on_the_host += part.by_fate.on_host
        passing_bytes.update(part.by_fate.passing_bytes)
    return StepEvents(lasting, passing, left, on_the_host, passing_bytes)


def peaks_by_phase(
    trace: StepTrace, sizes: Sizes, counts: Sequence[int], variant: Variant, expansions: "Expansions"
) -> dict[str, int]:
    """Returns the peak of live device bytes in each phase of a step of another depth, without making its events."""
    total = 0
    by_phase: dict[str, int] = {}
    for net_bytes, peaks in _Expansion((trace, trace), sizes, counts, variant, expansions).changes():
        for phase, peak_bytes in peaks.items():
            by_phase[phase] = max(by_phase.get(phase, 0), total + peak_bytes)
        total += net_bytes
    return by_phase


class _Part(NamedTuple):
    """All events in one slot of a step, in order."""

    events: list[Event]
    by_fate: StepEvents
    made_from: tuple[EventList, ...]


class _Changes(NamedTuple):
    """The live bytes in one slot of a step: their change, and the peak in each phase, both from those before it."""

    net_bytes: int
    peaks: dict[str, int]
    made_from: tuple[StorageRows, ...]


class Expansions:
    """A cache of expanded blocks. Settings tried for one plan differ in few of them.

    Lists are recognised by identity, so each cached result holds the lists it was made from.
    """

    def __init__(self) -> None:
        self._templates: dict[Hashable, Templates] = {}
        self.placed: dict[Hashable, list[tuple[int, StorageRows]]] = {}
        self.numbered: dict[Hashable, list[tuple[int, EventList]]] = {}
        self.parts: dict[tuple[int, ...], _Part] = {}
        self.changes: dict[tuple[int, ...], _Changes] = {}
        self._merged: dict[tuple[int, ...], tuple[StorageRows, list[StorageRows]]] = {}

    def templates(self, trace: StepTrace, sizes: Sizes, variant: Variant) -> Templates:
        key = (id(trace), sizes, replace(variant, chosen=frozenset(), swapped=()))
        if key not in self._templates:
            self._templates[key] = Templates(trace, sizes, variant)
        return self._templates[key]

    def merged(self, lists: list[StorageRows]) -> StorageRows:
        """Returns events that a block has at different places as one list, if these coincide for this block."""
        if len(lists) == 1:
            return lists[0]
        key = tuple(map(id, lists))
        if key not in self._merged:
            self._merged[key] = StorageRows([entry for rows in lists for entry in rows.entries]), lists
        return self._merged[key][0]


class _Block(NamedTuple):
    """A block, or what is outside all of them (number 0), and where its storages come from."""

    templates: Templates
    storages: tuple[Storage, ...]
    number: int
    first_number: int
    """Of its storages in the step."""
    unit: SwappedUnit | None

    @property
    def is_outside(self) -> bool:
        return self.first_number == 0


class _Expansion:
    """One step at given sizes and depth."""

    def __init__(
        self,
        traces: tuple[StepTrace, StepTrace],
        sizes: Sizes,
        counts: Sequence[int] | None,
        variant: Variant,
        expansions: Expansions,
    ) -> None:
        base = traces[0]
        assert all(trace.phases == base.phases for trace in traces), "both traces are of the same step"
        self._traces, self._sizes, self._variant, self._expansions = traces, sizes, variant, expansions
        self._counts = tuple(kind.count for kind in base.kinds) if counts is None else tuple(counts)
        self._placing = Placing(self._counts, base.backward_phases)

    def parts(self) -> Iterator[_Part]:
        """Yields the events slot by slot."""
        cache = self._expansions.parts
        for lists in _by_slot(map(self._events, self._blocks())):
            key = tuple(map(id, lists))
            if key not in cache:
                cache[key] = _part(lists)
            yield cache[key]

    def changes(self) -> Iterator[tuple[int, dict[str, int]]]:
        """Yields the change and the peaks of live bytes slot by slot."""
        cache = self._expansions.changes
        for lists in _by_slot(map(self._placed, self._blocks())):
            key = tuple(map(id, lists))
            if key not in cache:
                cache[key] = _changes(lists)
            yield cache[key].net_bytes, cache[key].peaks

    def _blocks(self) -> Iterator[_Block]:
        variant, expansions = self._variant, self._expansions
        templates = [expansions.templates(trace, self._sizes, variant) for trace in self._traces]
        # Outside the blocks, a step that recomputes any of them is like one that recomputes all of them.
        is_any = bool(variant.chosen)
        yield _Block(templates[is_any], self._traces[is_any].outside, 0, 0, None)
        units = {unit.number: unit for unit in variant.swapped}
        number = 0
        for index, count in enumerate(self._counts):
            for block in range(count):
                is_chosen = number in variant.chosen
                storages = self._traces[is_chosen].kinds[index].of_block(block, count)
                first_number = (number + 1) * _NUMBERS_PER_BLOCK
                yield _Block(templates[is_chosen], storages, number, first_number, units.get(number))
                number += 1

    def _placed(self, block: _Block) -> list[tuple[int, StorageRows]]:
        key = (id(block.templates), id(block.storages), block.number, block.first_number, block.unit, self._counts)
        cache = self._expansions.placed
        if key not in cache:
            by_slot: dict[int, list[StorageRows]] = {}
            for place, rows in block.templates.of(block.storages):
                by_slot.setdefault(self._placing.slot(place, block.number), []).append(rows)
            placed = [(slot, self._expansions.merged(lists)) for slot, lists in by_slot.items()]
            if self._variant.num_shards > 1:
                placed = self._sharded(placed, block)
            cache[key] = placed if block.unit is None else self._swapped(placed, block.unit)
        return cache[key]

    def _sharded(self, placed: list[tuple[int, StorageRows]], block: _Block) -> list[tuple[int, StorageRows]]:
        phases, variant = self._traces[0].phases, self._variant
        forward, backward = phases.index(StepPhase.FORWARD), phases.index(StepPhase.BACKWARD)
        if block.is_outside:
            when = self._placing.gathering_outside(forward, backward)
        else:
            when = self._placing.gathering(forward, backward, block.number)
        storages = sharded(
            as_storages(placed),
            variant.num_shards,
            when,
            accumulates=variant.accumulates,
            widening=variant.shard_widening,
        )
        return as_rows(storages)

    def _swapped(self, placed: list[tuple[int, StorageRows]], unit: SwappedUnit) -> list[tuple[int, StorageRows]]:
        phases = self._traces[0].phases

        def window(phase: str, number: int) -> tuple[int, int]:
            return self._placing.window(phases.index(phase), number)

        return as_rows(swapped(as_storages(placed), unit, window))

    def _events(self, block: _Block) -> list[tuple[int, EventList]]:
        key = (id(block.templates), id(block.storages), block.first_number, block.unit, self._counts)
        cache = self._expansions.numbered
        if key not in cache:
            cache[key] = [(slot, rows.numbered(block.first_number)) for slot, rows in self._placed(block)]
        return cache[key]


def _by_slot(blocks: Iterable[list[tuple[int, _Listed]]]) -> Iterator[tuple[_Listed, ...]]:
    """Yields the lists of all blocks in each slot, slots in order, blocks in order."""
    by_slot: dict[int, list[_Listed]] = {}
    for block in blocks:
        for slot, listed in block:
            by_slot.setdefault(slot, []).append(listed)
    for slot in sorted(by_slot):
        yield tuple(by_slot[slot])


def _in_order(lists: Sequence[StorageRows] | Sequence[EventList]) -> list[int]:
    """Returns indices into the concatenated lists, by position; at equal positions, the earlier block first."""
    positions = [position for listed in lists for position in listed.positions]
    return sorted(range(len(positions)), key=positions.__getitem__)


def _fates(lists: Sequence[EventList]) -> list[int] | None:
    if all(listed.fates is None for listed in lists):
        return None
    return [fate for listed in lists for fate in listed.fates or [0] * len(listed.events)]


def _part(lists: tuple[EventList, ...]) -> _Part:
    events, fates = lists[0].events, _fates(lists)
    if len(lists) > 1:
        order, unordered = _in_order(lists), [event for listed in lists for event in listed.events]
        events = [unordered[index] for index in order]
        fates = None if fates is None else [fates[index] for index in order]
    return _Part(events, _by_fate(events, fates), lists)


def _by_fate(events: list[Event], fates: list[int] | None) -> StepEvents:
    if fates is None:
        return StepEvents([], events, [], [], bytes_by_category(events))
    pairs = list(zip(events, fates, strict=True))
    passing = [event for event, fate in pairs if fate not in (STAYS, ON_HOST)]
    return StepEvents(
        lasting=[event for event, fate in pairs if fate == STAYS],
        passing=passing,
        left=[event for event, fate in pairs if fate == LEFT],
        on_host=[event for event, fate in pairs if fate == ON_HOST],
        passing_bytes=bytes_by_category(passing),
    )


def bytes_by_category(events: Iterable[Event]) -> Counter[str]:
    """Returns all that the events allocate."""
    totals: Counter[str] = Counter()
    for _, num_bytes, category, _ in events:
        if num_bytes:
            totals[category] += num_bytes
    return totals


def _changes(lists: tuple[StorageRows, ...]) -> _Changes:
    total = 0
    peaks: dict[str, int] = {}
    changes = [change for rows in lists for change in rows.changes]
    phases = [row[3] for rows in lists for row in rows.rows]
    for index in _in_order(lists):
        change = changes[index]
        total += change
        if change > 0:
            phase = phases[index]
            if phase not in peaks or total > peaks[phase]:
                peaks[phase] = total
    return _Changes(total, peaks, lists)
