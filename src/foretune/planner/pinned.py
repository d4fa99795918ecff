"""Pinned host memory as torch allocates it.

Its caching host allocator rounds every block up to a power of two (`PowerOf2Ceil` in CachingHostAllocator.h,
https://github.com/pytorch/pytorch/issues/150517), so that a tensor of 18 MiB takes 32. Weights that stay share a few
large blocks (`choices.memory_pieces`); tensors that come and go in each step are blocks of their own. The allocator's
setting against rounding is not used: it writes past the end of blocks in torch 2.13
(https://github.com/pytorch/pytorch/pull/192722).
"""

from collections.abc import Sequence

from foretune.choices.memory_pieces import page_locked_blocks
from foretune.core.values.step_trace import on_host
from foretune.core.vocabulary import MemoryPart
from foretune.planner.block_events import Event
from foretune.planner.live_memory import find_peak

# The optimizer creates its states on the host; everything else is a copy from the device.
_PAGEABLE = frozenset({on_host(MemoryPart.OPTIMIZER_STATE)})
# Weights of swapped blocks.
_STAYING = on_host(MemoryPart.FROZEN_WEIGHTS)


def pinned_rounding_bytes(events: Sequence[Event]) -> int:
    """Returns how much more pinned blocks take at their peak than the tensors in them."""
    staying = [event.num_bytes for event in events if event.num_bytes and event.category == _STAYING]
    blocks_bytes = sum(block.num_bytes for block in page_locked_blocks(staying)) - sum(staying)
    rounded = [
        event._replace(num_bytes=1 << (event.num_bytes - 1).bit_length())
        if event.num_bytes and event.category not in (*_PAGEABLE, _STAYING)
        else event
        for event in events
    ]
    return blocks_bytes + find_peak(rounded, num_largest=0).num_bytes - find_peak(events, num_largest=0).num_bytes
