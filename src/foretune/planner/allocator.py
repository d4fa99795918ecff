"""A model of PyTorch's CUDA caching allocator: how much it reserves for what a step allocates.

The rules are those of the allocator's source (pytorch c10/cuda/CUDACachingAllocator.cpp; the sizes stand in
c10/core/AllocatorConfig.h of torch 2.13). Sizes are rounded up to 512 bytes; up to 1 MiB they come from segments of
2 MiB, below 10 MiB from segments of 20 MiB, above from segments of their own, rounded up to 2 MiB. The smallest free
block that fits is taken; a rest is split off if it has 512 bytes (small) or more than 1 MiB (large). Released
neighbours are joined; segments are kept. With expandable segments each pool is one range of addresses that is mapped
page by page (`foretune.planner.expandable`). When the device is full, everything that is wholly free is given back and
the request is tried once more; only then is the step out of memory.

Left at their defaults and not modelled: max_split_size (any block may be split), rounding to powers of two, garbage
collection (off), private pools of CUDA graphs, more than one stream. ROCm builds of torch run the same source. Apple's
allocator is another one (heaps of 8 MiB, 32 MiB and 1 GiB): its reserved memory is not modelled, and what is allocated
stands in for it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from foretune.core.units import MIB
from foretune.planner.blocks import Block
from foretune.planner.expandable import AddressSpace
from foretune.planner.expansion import Event

ROUNDING_BYTES = 512
_MOST_SMALL_BYTES = MIB
_SMALL_SEGMENT_BYTES = 2 * MIB
_LARGE_SEGMENT_BYTES = 20 * MIB
_LEAST_OWN_SEGMENT_BYTES = 10 * MIB
OWN_ROUNDING_BYTES = 2 * MIB
_LEAST_LARGE_REST_BYTES = MIB


_FreeBlock = tuple[int, int, int, Block]


class DeviceFullError(Exception):
    """A request was refused although everything free had been given back."""


class CachingAllocator:
    """Serves requests as the allocator would, and remembers the most it held.

    `limit_bytes` is what it may reserve: the device's memory less what others hold. None is without end.
    """

    def __init__(self, *, expandable_segments: bool = False, limit_bytes: int | None = None) -> None:
        self.reserved_bytes = self.allocated_bytes = 0
        self.peak_reserved_bytes = self.peak_allocated_bytes = 0
        self.num_retries = 0
        """How often cached memory was given back to make room: each time the device waits (num_alloc_retries)."""
        self.ran_out_of_memory = False
        self.least_needed_bytes = 0
        """What had to be reserved at the least: the peak, or what the refused request would have made of it."""
        self._limit_bytes = limit_bytes
        # By size, then by address; no two are equal in both, so blocks themselves are never compared.
        self._free: dict[bool, list[_FreeBlock]] = {True: [], False: []}
        self._num_segments = 0
        self._spaces: dict[bool, AddressSpace] | None = None
        if expandable_segments:
            self._spaces = {
                is_small: AddressSpace(is_small=is_small, page_bytes=page_bytes, reserve=self._reserve)
                for is_small, page_bytes in ((True, _SMALL_SEGMENT_BYTES), (False, _LARGE_SEGMENT_BYTES))
            }

    def allocate(self, num_bytes: int) -> Block:
        size = -(-num_bytes // ROUNDING_BYTES) * ROUNDING_BYTES or ROUNDING_BYTES
        is_small = size <= _MOST_SMALL_BYTES
        block = self._found(size, self._free[is_small]) or self._more(size, is_small=is_small)
        if block is None:
            self.give_back()
            self.num_retries += 1
            block = self._more(size, is_small=is_small)
        if block is None:
            self.ran_out_of_memory = True
            self.least_needed_bytes = max(self.least_needed_bytes, self.reserved_bytes + self._missing_bytes(size))
            raise DeviceFullError
        block.is_free = False
        rest_bytes = block.num_bytes - size
        if rest_bytes >= ROUNDING_BYTES and (
            rest_bytes > _LEAST_LARGE_REST_BYTES or is_small or self._spaces is not None
        ):
            self._give(block.cut(size))
        self.allocated_bytes += block.num_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def release(self, block: Block) -> None:
        self.allocated_bytes -= block.num_bytes
        before, after = block.before, block.after
        if before is not None and before.is_free and before.is_mapped:
            self._take(before)
            block.absorb(before)
        if after is not None and after.is_free and after.is_mapped:
            self._take(after)
            block.absorb(after)
        self._give(block)

    def give_back(self) -> None:
        """Returns wholly free segments, or wholly free pages, to the driver."""
        for is_small, pool in self._free.items():
            if self._spaces is not None:
                rests = [rest for *_, block in pool for rest in self._spaces[is_small].unmap(block)]
                pool.clear()
                for rest in rests:
                    self._give(rest)
            else:
                pool[:] = [entry for entry in pool if entry[3].before or entry[3].after]
        in_pools = sum(block.num_bytes for pool in self._free.values() for *_, block in pool)
        self.reserved_bytes = self.allocated_bytes + in_pools

    def _found(self, size: int, pool: list[_FreeBlock]) -> Block | None:
        """The smallest free block that fits.

        With expandable segments, a block that has room to grow counts as large as it can grow, so that another one
        is preferred to the open end.
        """
        index = bisect_left(pool, (size,))
        if index == len(pool):
            return None
        if self._spaces is not None:
            while index + 1 < len(pool) and pool[index + 1][3].room_bytes() < pool[index][3].room_bytes():
                index += 1
        return pool.pop(index)[3]

    def _more(self, size: int, *, is_small: bool) -> Block | None:
        """New memory from the driver; None if it has none left."""
        if self._spaces is not None:
            block = self._spaces[is_small].extend(size, take=self._take, give=self._give)
            if block is not None:
                self._take(block)
            return block
        segment_bytes = _segment_bytes(size)
        if not self._reserve(segment_bytes):
            return None
        self._num_segments += 1
        return Block(segment_bytes, self._num_segments, 0, is_small)

    def _missing_bytes(self, size: int) -> int:
        """What would have had to be reserved for a request; with expandable segments at least this."""
        if self._spaces is None:
            return _segment_bytes(size)
        is_small = size <= _MOST_SMALL_BYTES
        return self._spaces[is_small].missing_bytes(size)

    def _reserve(self, num_bytes: int) -> bool:
        if self._limit_bytes is not None and self.reserved_bytes + num_bytes > self._limit_bytes:
            return False
        self.reserved_bytes += num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self.least_needed_bytes = self.peak_reserved_bytes
        return True

    def _give(self, block: Block) -> None:
        block.is_free = True
        insort(self._free[block.is_small], (block.num_bytes, block.segment, block.offset, block))

    def _take(self, block: Block) -> None:
        pool = self._free[block.is_small]
        place = bisect_left(pool, (block.num_bytes, block.segment, block.offset))
        assert pool[place][3] is block, "a free block is in its pool"
        pool.pop(place)


def _segment_bytes(size: int) -> int:
    if size <= _MOST_SMALL_BYTES:
        return _SMALL_SEGMENT_BYTES
    if size < _LEAST_OWN_SEGMENT_BYTES:
        return _LARGE_SEGMENT_BYTES
    return -(-size // OWN_ROUNDING_BYTES) * OWN_ROUNDING_BYTES


def replay(
    events: Iterable[Event], *, expandable_segments: bool = False, limit_bytes: int | None = None
) -> CachingAllocator:
    """Runs a step's events through the allocator; stops at the request that does not fit within the limit."""
    allocator = CachingAllocator(expandable_segments=expandable_segments, limit_bytes=limit_bytes)
    live: dict[int, Block] = {}
    allocate, release, ended = allocator.allocate, allocator.release, live.pop
    try:
        for storage, num_bytes, _, _ in events:
            if num_bytes:
                live[storage] = allocate(num_bytes)
            else:
                release(ended(storage))
    except DeviceFullError:
        pass
    return allocator
