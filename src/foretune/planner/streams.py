"""Builds sequences of allocations from several: resident storages and temporary ones."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from foretune.core.values.step_trace import is_on_host, off_host
from foretune.core.vocabulary import LASTING
from foretune.planner.block_events import Event
from foretune.planner.expansion import StepEvents, bytes_by_category

# Above all storage numbers of a step.
_FIRST_NUMBER = 1 << 40


class Stream:
    """Events in the order they are added. Those of a step keep their storage numbers; all others get new ones."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._next = _FIRST_NUMBER

    def run(self, events: Sequence[Event], keeps: Collection[str] = ()) -> None:
        """Adds a step's events unchanged and frees what they leave, except for the categories in `keeps`."""
        self.events += events
        self.events += [
            Event(event.storage, 0, event.category, event.phase)
            for event in lasting_only(events)
            if event.category not in keeps
        ]

    def run_step(self, step: StepEvents, states: Sequence[Event] = ()) -> None:
        """Adds a step without what was there before it, and frees what it leaves.

        `states` stay; they are created between the gradients and the update.
        """
        self.events += step.passing[: step.update_start]
        self.events += states
        self.events += step.passing[step.update_start :]
        self.events += [Event(event.storage, 0, event.category, event.phase) for event in step.left]

    def hold(self, num_bytes: int, part: str, phase: str) -> int | None:
        """Allocates a storage that stays until it is released; None for zero bytes."""
        if num_bytes <= 0:
            return None
        self._next += 1
        self.events.append(Event(self._next, num_bytes, part, phase))
        return self._next

    def release(self, storage: int | None, part: str, phase: str) -> None:
        if storage is not None:
            self.events.append(Event(storage, 0, part, phase))

    def play(self, events: Iterable[Event], phase: str, parts: Mapping[str, str]) -> None:
        """Adds a pass with another phase and other categories, and frees what it leaves."""
        numbers: dict[int, tuple[int, str]] = {}
        for event in events:
            if event.num_bytes:
                self._next += 1
                part = parts.get(event.category, event.category)
                numbers[event.storage] = (self._next, part)
                self.events.append(Event(self._next, event.num_bytes, part, phase))
            else:
                number, part = numbers.pop(event.storage)
                self.events.append(Event(number, 0, part, phase))
        for number, part in numbers.values():
            self.events.append(Event(number, 0, part, phase))


def split(events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """Returns the allocations of a step that outlive it, and all other events of the step."""
    kept = [event for event in lasting_only(events) if event.category in LASTING]
    kept_storages = {event.storage for event in kept}
    return kept, [event for event in events if event.storage not in kept_storages]


def by_fate(events: Sequence[Event]) -> StepEvents:
    """Returns the events of a step by what becomes of their storages."""
    lasting, passing = split(device_events(events))
    return StepEvents(lasting, passing, lasting_only(passing), host_events(events), bytes_by_category(passing))


def lasting_only(events: Sequence[Event]) -> list[Event]:
    """Returns the allocations that are not released."""
    made: dict[int, Event] = {}
    for event in events:
        if event.num_bytes:
            made[event.storage] = event
        else:
            made.pop(event.storage, None)
    return list(made.values())


def device_events(events: Sequence[Event]) -> list[Event]:
    """Returns the events of device memory."""
    of_host = _on_host(events)
    return [event for event in events if event.category not in of_host] if of_host else list(events)


def host_events(events: Sequence[Event]) -> list[Event]:
    """Returns the events of host memory, if it is separate."""
    of_host = _on_host(events)
    return [event for event in events if event.category in of_host] if of_host else []


def _on_host(events: Sequence[Event]) -> set[str]:
    """Returns the categories on the host: there are few of them, and many events."""
    return {category for category in {event.category for event in events} if is_on_host(category)}


def as_one(events: Iterable[Event]) -> list[Event]:
    """Returns all events, for a CPU as the device."""
    return [event._replace(category=off_host(event.category)) for event in events]
