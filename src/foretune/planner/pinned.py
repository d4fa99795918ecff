"""Pinned host memory as torch allocates it.

Its caching host allocator rounds every block up to a power of two (`PowerOf2Ceil` in CachingHostAllocator.h,
https://github.com/pytorch/pytorch/issues/150517), so that a weight of 18 MiB takes 32. Later releases may not round
large blocks (https://github.com/pytorch/pytorch/pull/171662).
"""

from collections.abc import Sequence

from foretune.core.values.step_trace import on_host
from foretune.core.vocabulary import MemoryPart
from foretune.planner.block_events import Event
from foretune.planner.live_memory import find_peak

# The optimizer creates its states on the host; everything else is a copy from the device.
_PAGEABLE = frozenset({on_host(MemoryPart.OPTIMIZER_STATE)})


def pinned_rounding_bytes(events: Sequence[Event]) -> int:
    """Returns how much more pinned blocks take at their peak than the tensors in them."""
    rounded = [
        event._replace(num_bytes=1 << (event.num_bytes - 1).bit_length())
        if event.num_bytes and event.category not in _PAGEABLE
        else event
        for event in events
    ]
    return find_peak(rounded, num_largest=0).num_bytes - find_peak(events, num_largest=0).num_bytes
