"""Live bytes over a step: the peak, and what it is made of."""

from collections.abc import Iterable
from dataclasses import dataclass

from foretune.plan.expansion import Event

# Every allocation of the CUDA allocator is rounded up to this.
CUDA_ROUNDING_BYTES = 512


@dataclass(frozen=True)
class Peak:
    """The moment with the most live bytes."""

    num_bytes: int
    by_category: dict[int, int]
    phase: int
    by_phase: dict[int, int]
    """The most there was in each phase."""


def find_peak(events: Iterable[Event], rounding_bytes: int = 1) -> Peak:
    """Adds up what is alive after each event."""
    sizes: dict[int, int] = {}
    live: dict[int, int] = {}
    total = peak_bytes = 0
    peak_live: dict[int, int] = {}
    peak_phase = 0
    by_phase: dict[int, int] = {}
    for event in events:
        if event.num_bytes:
            size = -(-event.num_bytes // rounding_bytes) * rounding_bytes
            sizes[event.storage] = size
            live[event.category] = live.get(event.category, 0) + size
            total += size
            by_phase[event.phase] = max(by_phase.get(event.phase, 0), total)
            if total > peak_bytes:
                peak_bytes, peak_phase, peak_live = total, event.phase, dict(live)
        elif event.storage in sizes:
            size = sizes.pop(event.storage)
            live[event.category] -= size
            total -= size
    return Peak(peak_bytes, peak_live, peak_phase, by_phase)
