"""Live bytes over a step: the peak and its composition."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from foretune.planner.block_events import Event


@dataclass(frozen=True)
class LivePeak:
    """The moment with the most live bytes."""

    num_bytes: int
    by_category: dict[str, int]
    phase: str
    by_phase: dict[str, int]
    """The peak of each phase."""
    largest: tuple[tuple[str, int, int], ...]
    """The largest storages at the peak: category, bytes of one, number of that size."""


def find_peak(events: Iterable[Event], rounding_bytes: int = 1, num_largest: int = 12) -> LivePeak:
    """Sums the live bytes after each event and returns the peak."""
    events = list(events)
    total = peak_bytes = peak_index = 0
    by_phase: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for index, (storage, num_bytes, _, phase) in enumerate(events):
        if num_bytes:
            sizes[storage] = rounded = -(-num_bytes // rounding_bytes) * rounding_bytes
            total += rounded
            if total > by_phase.get(phase, 0):
                by_phase[phase] = total
                if total > peak_bytes:
                    peak_bytes, peak_index = total, index
        else:
            total -= sizes[storage]
    alive = _alive(events[: peak_index + 1])
    by_category: Counter[str] = Counter()
    alike: Counter[tuple[str, int]] = Counter()
    for event in alive:
        by_category[event.category] += sizes[event.storage]
        alike[event.category, sizes[event.storage]] += 1
    most = sorted(alike.items(), key=lambda item: -item[0][1] * item[1])[:num_largest]
    return LivePeak(
        num_bytes=peak_bytes,
        by_category=dict(by_category),
        phase=events[peak_index].phase if events else "",
        by_phase=by_phase,
        largest=tuple((category, num_bytes, count) for (category, num_bytes), count in most),
    )


def _alive(events: Iterable[Event]) -> list[Event]:
    found: dict[int, Event] = {}
    for event in events:
        if event.num_bytes:
            found[event.storage] = event
        else:
            del found[event.storage]
    return list(found.values())
