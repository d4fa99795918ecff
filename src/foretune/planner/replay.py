"""Replays a run's allocations through a model of the allocator."""

from collections.abc import Iterable

from foretune.planner.allocator import CachingAllocator, DeviceFullError, PlainSegments
from foretune.planner.block_events import Event
from foretune.planner.expandable_segments import ExpandableSegments


def replay(
    events: Iterable[Event], *, expandable_segments: bool = False, limit_bytes: int | None = None
) -> CachingAllocator:
    """Replays a step's events; stops at the request that does not fit within the limit."""
    kind = ExpandableSegments if expandable_segments else PlainSegments
    allocator = kind(limit_bytes=limit_bytes)
    try:
        allocator.serve(events)
    except DeviceFullError:
        assert allocator.ran_out_of_memory
    return allocator
