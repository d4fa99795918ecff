"""A recording as a list of storages, each with the moments at which it was made and released."""

from dataclasses import dataclass

from foretune.core.values.step_trace import on_host
from foretune.core.vocabulary import MemoryPart, StepPhase
from foretune.trace.recorder import Allocation, Place
from foretune.trace.tracing import TracedStep


@dataclass(frozen=True, slots=True)
class EventPoint:
    """When something happened: the how-manieth phase, which block, the how-manieth event there."""

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
    """All storages of a step, in the order they were made."""

    phases: tuple[str, ...]
    lifetimes: tuple[Lifetime, ...]


def timeline(traced: TracedStep) -> Timeline:
    """Numbers phases, blocks and events; decides for each storage which block it belongs to and what it is."""
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
            continue  # what setting up used and gave back is over before the step
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
    """What happens between two blocks belongs to the block before it, so that a phase is a row of blocks.

    A phase goes through the blocks in one direction. What is put down to a block that is already over (a storage that
    is let go of late) happened in the block that runs now.
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
    """The block that a storage is repeated with."""
    if event.number in traced.owners:
        return traced.owners[event.number]
    if point.block is None and event.num_results == len(traced.trained_owners):
        return traced.trained_owners[event.result]
    return point.block


def _category(phases: tuple[str, ...], made: EventPoint, released: EventPoint | None) -> str:
    if phases[made.phase] == StepPhase.INPUTS:
        return MemoryPart.INPUTS
    if released is None:
        return "other"
    crosses = phases[made.phase] == StepPhase.FORWARD and phases[released.phase] != StepPhase.FORWARD
    return MemoryPart.ACTIVATIONS if crosses else MemoryPart.TEMPORARIES
