"""Converts a recording to a list of storages, each with its allocation and release."""

from dataclasses import dataclass

from foretune.core.values.step_trace import on_host
from foretune.core.vocabulary import MemoryPart, StepPhase
from foretune.trace.recorder import Allocation, Place
from foretune.trace.tracing import TracedStep


@dataclass(frozen=True, slots=True)
class EventPoint:
    """The time of an event: index of the phase, block, and index of the event in it."""

    phase: int
    block: int | None
    position: int


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One storage."""

    made: EventPoint
    released: EventPoint | None
    num_bytes: int
    category: str
    owner: int | None
    """The block it is repeated with."""
    shape: tuple[int, ...]
    operator: str


@dataclass(frozen=True)
class Timeline:
    """All storages of a step, in order of allocation."""

    phases: tuple[str, ...]
    lifetimes: tuple[Lifetime, ...]


def timeline(traced: TracedStep) -> Timeline:
    """Numbers phases, blocks and events; determines the block and category of each storage."""
    phases, points = points_of([event.place for event in traced.recording.events])
    made: dict[int, tuple[Allocation, EventPoint]] = {}
    released: dict[int, EventPoint] = {}
    for event, point in zip(traced.recording.events, points, strict=True):
        if isinstance(event, Allocation):
            made[event.number] = (event, point)
        else:
            released[event.number] = point
    lifetimes = []
    for number, (event, point) in made.items():
        end = released.get(number)
        if end is not None and phases[end.phase] == "setup":
            continue  # freed during setup, before the step
        category = traced.categories.get(number) or _category(phases, point, end)
        lifetimes.append(
            Lifetime(
                made=point,
                released=end,
                num_bytes=event.num_bytes,
                category=on_host(category) if number in traced.on_host else category,
                owner=owner_of(traced, event, point),
                shape=event.shape,
                operator=event.operator,
            )
        )
    return Timeline(phases, tuple(lifetimes))


def points_of(places: list[Place]) -> tuple[tuple[str, ...], list[EventPoint]]:
    """Returns the phases and the time of each event. Events between two blocks belong to the block before, so that a
    phase is a sequence of blocks.

    A phase passes through the blocks in one direction. An event of a block that is already complete (a storage that is
    freed late) belongs to the running block.
    """
    phases: list[str] = []
    points = []
    block: int | None = None
    counts: dict[tuple[int, int | None], int] = {}
    for place in places:
        if not phases or place.phase != phases[-1]:
            phases.append(place.phase)
            block = None
        block = _next_block(place, block)
        key = (len(phases) - 1, block)
        counts[key] = counts.get(key, -1) + 1
        points.append(EventPoint(*key, counts[key]))
    return tuple(phases), points


def _next_block(place: Place, running: int | None) -> int | None:
    if place.block is None or running is None:
        return running if place.block is None else place.block
    return min(running, place.block) if place.phase == StepPhase.BACKWARD else max(running, place.block)


def owner_of(traced: TracedStep, event: Allocation, point: EventPoint) -> int | None:
    """Returns the block that a storage is repeated with."""
    if event.number in traced.owners:
        return traced.owners[event.number]
    # Optimizers work on lists of weights: all of them, those with a gradient, or those of one dtype.
    return event.listed_with if point.block is None else point.block


def _category(phases: tuple[str, ...], made: EventPoint, released: EventPoint | None) -> str:
    if phases[made.phase] == StepPhase.INPUTS:
        return MemoryPart.INPUTS
    if released is None:
        return "other"
    crosses = phases[made.phase] == StepPhase.FORWARD and phases[released.phase] != StepPhase.FORWARD
    return MemoryPart.ACTIVATIONS if crosses else MemoryPart.TEMPORARIES
