"""A model of PyTorch's CUDA caching allocator: how much memory it reserves for the allocations of a step.

The rules are those of the allocator's source (pytorch c10/cuda/CUDACachingAllocator.cpp; the sizes are in
c10/core/AllocatorConfig.h of torch 2.13). Sizes are rounded up to 512 bytes. Requests up to 1 MiB use segments of 2
MiB, those below 10 MiB segments of 20 MiB, and larger ones their own segments, rounded up to 2 MiB. The smallest free
block that fits is used; the remainder is split off if it has 512 bytes (small) or more than 1 MiB (large). Free
neighbours are merged; segments stay reserved. With expandable segments each pool is one range of addresses that is
mapped page by page (`foretune.planner.expandable_segments`). When the device is full, all completely free segments are
returned and the request is retried once; only then is the step out of memory.

Left at their defaults and not modelled: max_split_size (any block may be split), rounding to powers of two, garbage
collection (off), private pools of CUDA graphs, more than one stream. ROCm builds of torch run the same source. Apple's
allocator differs (heaps of 8 MiB, 32 MiB and 1 GiB): its reserved memory is not modelled, and allocated memory is used
instead.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterable

from foretune.core.units import MIB
from foretune.planner.block_events import Event

ROUNDING_BYTES = 512
MOST_SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
_LEAST_OWN_SEGMENT_BYTES = 10 * MIB
OWN_ROUNDING_BYTES = 2 * MIB
_LEAST_LARGE_REST_BYTES = MIB

# Internally, sizes and addresses are in units of 512 bytes. A block is one integer, its size above its address, so that
# blocks sort in the allocator's order: by size, then by address. A plan replays hundreds of thousands of events.
_ADDRESS_BITS = 36
_ADDRESSES = (1 << _ADDRESS_BITS) - 1
_MOST_SMALL = MOST_SMALL_BYTES // ROUNDING_BYTES
# The rest of a large block is split off only if it is more than 1 MiB.
_LEAST_LARGE_REST = _LEAST_LARGE_REST_BYTES // ROUNDING_BYTES + 1


class DeviceFullError(Exception):
    """Raised if a request fails although everything free was returned to the driver."""


class CachingAllocator(ABC):
    """Serves requests as the allocator would, and records the peak.

    `limit_bytes` is what it may reserve: the device's memory minus what others use. None means no limit.
    """

    def __init__(self, *, limit_bytes: int | None = None) -> None:
        self.reserved_bytes = self.allocated_bytes = 0
        self.peak_reserved_bytes = self.peak_allocated_bytes = 0
        self.num_retries = 0
        """How often cached memory was returned to make room: each time the device synchronises (num_alloc_retries)."""
        self.ran_out_of_memory = False
        self.least_needed_bytes = 0
        """Minimum of memory that had to be reserved: the peak, or what the failed request would have raised it to."""
        self._limit_bytes = limit_bytes

    @abstractmethod
    def serve(self, events: Iterable[Event]) -> None:
        """Serves all requests; raises at the one that does not fit."""

    @abstractmethod
    def give_back(self) -> None:
        """Returns completely free memory to the driver."""

    def _reserve(self, num_bytes: int) -> bool:
        if self._limit_bytes is not None and self.reserved_bytes + num_bytes > self._limit_bytes:
            return False
        self.reserved_bytes += num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self.least_needed_bytes = self.peak_reserved_bytes
        return True

    def _run_out(self, missing_bytes: int) -> DeviceFullError:
        self.ran_out_of_memory = True
        self.least_needed_bytes = max(self.least_needed_bytes, self.reserved_bytes + missing_bytes)
        return DeviceFullError()


class PlainSegments(CachingAllocator):
    """The default: segments of fixed size."""

    def __init__(self, *, limit_bytes: int | None = None) -> None:
        super().__init__(limit_bytes=limit_bytes)
        self._live: dict[int, int] = {}
        """Blocks in use, by storage."""
        self._free_large: list[int] = []
        self._free_small: list[int] = []
        """Free blocks, in order."""
        self._starts: dict[int, int] = {}
        """Sizes of free blocks by start address."""
        self._ends: dict[int, int] = {}
        """Start addresses of free blocks by end address."""
        self._segments: dict[int, int] = {}
        """Sizes of segments by start address. Gaps between segments prevent their blocks from being merged."""
        self._next_address = 0

    def serve(self, events: Iterable[Event]) -> None:
        live, starts, ends = self._live, self._starts, self._ends
        small, large = self._free_small, self._free_large
        allocated, peak = self.allocated_bytes // ROUNDING_BYTES, self.peak_allocated_bytes // ROUNDING_BYTES
        try:
            for storage, num_bytes, _, _ in events:
                if num_bytes:
                    size = -(-num_bytes // ROUNDING_BYTES)
                    key = size << _ADDRESS_BITS
                    if size <= _MOST_SMALL:
                        pool, least_rest = small, 1
                    else:
                        pool, least_rest = large, _LEAST_LARGE_REST
                    index = bisect_left(pool, key)
                    if index == len(pool):
                        self._add_segment(size, pool)
                        index = bisect_left(pool, key)
                    # The smallest free block that fits.
                    block = pool.pop(index)
                    address, whole = block & _ADDRESSES, block >> _ADDRESS_BITS
                    del starts[address]
                    rest = whole - size
                    if rest >= least_rest:
                        start = address + size
                        insort(pool, rest << _ADDRESS_BITS | start)
                        starts[start], ends[address + whole] = rest, start
                        block, whole = key | address, size
                    else:
                        del ends[address + whole]
                    live[storage] = block
                    allocated += whole
                    peak = max(peak, allocated)
                else:
                    block = live.pop(storage)
                    address, whole = block & _ADDRESSES, block >> _ADDRESS_BITS
                    allocated -= whole
                    # Small requests leave no remainder, so the size of a block identifies its pool.
                    pool = small if whole <= _MOST_SMALL else large
                    end = address + whole
                    if address in ends:
                        address = ends.pop(address)
                        size = starts[address]
                        del pool[bisect_left(pool, size << _ADDRESS_BITS | address)]
                        whole += size
                    if end in starts:
                        size = starts.pop(end)
                        del pool[bisect_left(pool, size << _ADDRESS_BITS | end)]
                        whole, end = whole + size, end + size
                    insort(pool, whole << _ADDRESS_BITS | address)
                    starts[address], ends[end] = whole, address
        finally:
            self.allocated_bytes = allocated * ROUNDING_BYTES
            self.peak_allocated_bytes = peak * ROUNDING_BYTES

    def _add_segment(self, size: int, pool: list[int]) -> None:
        """Reserves a segment for a request. If the device is full, completely free segments are returned first."""
        num_bytes = _segment_bytes(size * ROUNDING_BYTES)
        if not self._reserve(num_bytes):
            self.give_back()
            self.num_retries += 1
            if not self._reserve(num_bytes):
                raise self._run_out(num_bytes)
        address, whole = self._next_address, num_bytes // ROUNDING_BYTES
        self._segments[address] = whole
        self._next_address += whole + 1
        assert self._next_address <= _ADDRESSES, "addresses have so many bits"
        insort(pool, whole << _ADDRESS_BITS | address)
        self._starts[address] = whole
        self._ends[address + whole] = address

    def give_back(self) -> None:
        for pool in (self._free_large, self._free_small):
            kept: list[int] = []
            for block in pool:
                size, address = block >> _ADDRESS_BITS, block & _ADDRESSES
                if self._segments.get(address) != size:
                    kept.append(block)
                    continue
                del self._segments[address], self._starts[address], self._ends[address + size]
                self.reserved_bytes -= size * ROUNDING_BYTES
            pool[:] = kept


def _segment_bytes(size: int) -> int:
    if size <= MOST_SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < _LEAST_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // OWN_ROUNDING_BYTES) * OWN_ROUNDING_BYTES
