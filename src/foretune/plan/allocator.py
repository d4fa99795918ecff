"""A model of PyTorch's CUDA caching allocator: how much it reserves for what a step allocates.

The rules are those of the allocator's source (c10/cuda/CUDACachingAllocator.cpp): sizes are rounded up to 512 bytes; up
to 1 MiB they come from segments of 2 MiB, below 10 MiB from segments of 20 MiB, above from segments of their own,
rounded up to 2 MiB; the smallest free block that fits is taken and split; released neighbours are joined; segments are
kept. With expandable segments each pool is one range of addresses that grows by pages at its end.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from foretune.core.units import MIB
from foretune.plan.expansion import Event

_ROUNDING_BYTES = 512
_MOST_SMALL_BYTES = MIB
_SMALL_SEGMENT_BYTES = 2 * MIB
_LARGE_SEGMENT_BYTES = 20 * MIB
_LEAST_OWN_SEGMENT_BYTES = 10 * MIB
_OWN_ROUNDING_BYTES = 2 * MIB
_LEAST_LARGE_REST_BYTES = MIB


@dataclass(eq=False, slots=True)
class _Block:
    """A piece of a segment, in use or free, with its neighbours."""

    num_bytes: int
    segment: int
    offset: int
    is_small: bool
    before: "_Block | None" = None
    after: "_Block | None" = None
    is_free: bool = False

    def order(self) -> tuple[int, int, int]:
        """Free blocks are searched by size, then by address."""
        return self.num_bytes, self.segment, self.offset


class CachingAllocator:
    """Serves requests as the allocator would, and remembers the most it held."""

    def __init__(self, *, expandable_segments: bool = False) -> None:
        self.reserved_bytes = self.allocated_bytes = 0
        self.peak_reserved_bytes = self.peak_allocated_bytes = 0
        self._expandable = expandable_segments
        self._free: dict[bool, list[tuple[tuple[int, int, int], _Block]]] = {True: [], False: []}
        self._num_segments = 0
        self._ends: dict[bool, _Block] = {}
        """The last block of each expandable pool."""

    def allocate(self, num_bytes: int) -> _Block:
        size = max(_ROUNDING_BYTES, -(-num_bytes // _ROUNDING_BYTES) * _ROUNDING_BYTES)
        is_small = size <= _MOST_SMALL_BYTES
        pool = self._free[is_small]
        found = bisect_left(pool, (size, -1, -1), key=lambda entry: entry[0])
        block = pool.pop(found)[1] if found < len(pool) else self._more(size, is_small=is_small)
        block.is_free = False
        self._split(block, size)
        self.allocated_bytes += block.num_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def release(self, block: _Block) -> None:
        self.allocated_bytes -= block.num_bytes
        block.is_free = True
        if block.before is not None and block.before.is_free:
            self._take(block.before)
            block = self._joined(block.before, block)
        if block.after is not None and block.after.is_free:
            self._take(block.after)
            block = self._joined(block, block.after)
        self._give(block)

    def _more(self, size: int, *, is_small: bool) -> _Block:
        if self._expandable:
            return self._extended(size, is_small=is_small)
        if is_small:
            segment_bytes = _SMALL_SEGMENT_BYTES
        elif size < _LEAST_OWN_SEGMENT_BYTES:
            segment_bytes = _LARGE_SEGMENT_BYTES
        else:
            segment_bytes = -(-size // _OWN_ROUNDING_BYTES) * _OWN_ROUNDING_BYTES
        self._reserve(segment_bytes)
        self._num_segments += 1
        return _Block(segment_bytes, self._num_segments, 0, is_small)

    def _extended(self, size: int, *, is_small: bool) -> _Block:
        """New pages at the end of the pool, joined to the free block that may be there."""
        page_bytes = _SMALL_SEGMENT_BYTES if is_small else _LARGE_SEGMENT_BYTES
        end = self._ends.get(is_small)
        missing = size - (end.num_bytes if end is not None and end.is_free else 0)
        added = -(-missing // page_bytes) * page_bytes
        self._reserve(added)
        offset = end.offset + end.num_bytes if end is not None else 0
        block = _Block(added, 0 if is_small else 1, offset, is_small, before=end)
        if end is not None:
            end.after = block
        self._ends[is_small] = block
        if end is not None and end.is_free:
            self._take(end)
            block = self._joined(end, block)
        return block

    def _reserve(self, num_bytes: int) -> None:
        self.reserved_bytes += num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _split(self, block: _Block, size: int) -> None:
        rest = block.num_bytes - size
        if rest < _ROUNDING_BYTES or (not block.is_small and not self._expandable and rest <= _LEAST_LARGE_REST_BYTES):
            return
        remainder = _Block(
            rest, block.segment, block.offset + size, block.is_small, before=block, after=block.after, is_free=True
        )
        if block.after is not None:
            block.after.before = remainder
        block.after, block.num_bytes = remainder, size
        if self._ends.get(block.is_small) is block:
            self._ends[block.is_small] = remainder
        self._give(remainder)

    def _joined(self, left: _Block, right: _Block) -> _Block:
        left.num_bytes += right.num_bytes
        left.after = right.after
        if right.after is not None:
            right.after.before = left
        if self._ends.get(right.is_small) is right:
            self._ends[right.is_small] = left
        return left

    def _give(self, block: _Block) -> None:
        insort(self._free[block.is_small], (block.order(), block), key=lambda entry: entry[0])

    def _take(self, block: _Block) -> None:
        pool = self._free[block.is_small]
        place = bisect_left(pool, block.order(), key=lambda entry: entry[0])
        assert pool[place][1] is block, "a free block is in its pool"
        pool.pop(place)


def replay(events: Iterable[Event], *, expandable_segments: bool = False) -> CachingAllocator:
    """Runs a step's events through the allocator."""
    allocator = CachingAllocator(expandable_segments=expandable_segments)
    live: dict[int, _Block] = {}
    for event in events:
        if event.num_bytes:
            live[event.storage] = allocator.allocate(event.num_bytes)
        else:
            allocator.release(live.pop(event.storage))
    return allocator
