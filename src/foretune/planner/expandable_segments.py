"""Expandable segments: each pool is one range of addresses that is mapped page by page.

Pages have 2 MiB for small requests and 20 MiB for large ones. New pages are mapped at the lowest address where the
request has room, and merged with the free block before them. When the device is full, completely free pages are
unmapped, wherever they are, and may be mapped elsewhere: this is why fragmentation costs little here.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from foretune.planner.allocator import (
    LARGE_SEGMENT_BYTES,
    MOST_SMALL_BYTES,
    ROUNDING_BYTES,
    SMALL_SEGMENT_BYTES,
    CachingAllocator,
)
from foretune.planner.block_events import Event
from foretune.planner.blocks import Block

_FreeBlock = tuple[int, int, int, Block]

# Larger than any device; the source reserves 9/8 of the device's memory, which the pages can never fill.
_ADDRESSES_BYTES = 2**50


class AddressSpace:
    """One pool's range of addresses."""

    def __init__(self, *, is_small: bool, page_bytes: int, reserve: Callable[[int], bool]) -> None:
        self._page_bytes = page_bytes
        self._reserve = reserve
        whole = Block(_ADDRESSES_BYTES, 0 if is_small else 1, 0, is_small, is_free=True, is_mapped=False)
        self._unmapped = [whole]
        """By address; the last one is the open end."""

    def extend(self, size: int, *, take: Callable[[Block], None], give: Callable[[Block], None]) -> Block | None:
        """Maps pages and returns a free block of at least `size`; None if the driver has no memory left.

        Pages that were mapped before one failed stay in the pool, as in the source.
        """
        candidate = self._lowest_with_room(size)
        if not candidate.is_mapped and not self._map(candidate, min(candidate.num_bytes, size), take, give):
            return None
        while candidate.num_bytes < size:
            following = candidate.after
            assert following is not None, "there is room behind the candidate"
            if not self._map(following, min(size - candidate.num_bytes, following.num_bytes), take, give):
                return None
            candidate = following
        return candidate

    def unmap(self, block: Block) -> list[Block]:
        """Unmaps the pages that lie completely within a free block; returns the parts that stay mapped."""
        start = -(-block.offset // self._page_bytes) * self._page_bytes
        end = (block.offset + block.num_bytes) // self._page_bytes * self._page_bytes
        if start >= end:
            return [block]
        rests: list[Block] = []
        if start > block.offset:
            rests.append(block)
            block = block.cut(start - block.offset)
        if end < block.offset + block.num_bytes:
            rests.append(block.cut(end - block.offset))
        block.is_free, block.is_mapped = True, False
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.is_mapped:
                self._unmapped.remove(neighbour)
                block.absorb(neighbour)
        self._unmapped.append(block)
        self._unmapped.sort(key=lambda unmapped: unmapped.offset)
        return rests

    def missing_bytes(self, size: int) -> int:
        """Returns the bytes to map for a request at the lowest address where it has room."""
        block: Block | None = self._lowest_with_room(size)
        mapped = found = 0
        while block is not None and found < size:
            found += block.num_bytes
            mapped += block.num_bytes if block.is_mapped else 0
            block = block.after
        return -(-max(0, size - mapped) // self._page_bytes) * self._page_bytes

    def _lowest_with_room(self, size: int) -> Block:
        for unmapped in self._unmapped:
            before = unmapped.before
            first = before if before is not None and before.is_free else unmapped
            block: Block | None = first
            found = 0
            while block is not None and block.is_free and found < size:
                found += block.num_bytes
                block = block.after
            if found >= size:
                return first
        raise AssertionError("the open end has room for everything")

    def _map(self, block: Block, num_bytes: int, take: Callable[[Block], None], give: Callable[[Block], None]) -> bool:
        """Maps the first bytes of an unmapped block and merges it with its free neighbours."""
        pages_bytes = -(-num_bytes // self._page_bytes) * self._page_bytes
        if not self._reserve(pages_bytes):
            return False
        place = self._unmapped.index(block)
        if pages_bytes < block.num_bytes:
            rest = block.cut(pages_bytes)
            rest.is_free = True
            self._unmapped[place] = rest
        else:
            self._unmapped.pop(place)
        block.is_mapped = True
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free and neighbour.is_mapped:
                take(neighbour)
                block.absorb(neighbour)
        give(block)
        return True


class ExpandableSegments(CachingAllocator):
    """With PYTORCH_ALLOC_CONF=expandable_segments:True."""

    def __init__(self, *, limit_bytes: int | None = None) -> None:
        super().__init__(limit_bytes=limit_bytes)
        self._live: dict[int, Block] = {}
        # By size, then by address; no two are equal in both, so blocks themselves are never compared.
        self._free: dict[bool, list[_FreeBlock]] = {True: [], False: []}
        self._spaces = {
            is_small: AddressSpace(is_small=is_small, page_bytes=page_bytes, reserve=self._reserve)
            for is_small, page_bytes in ((True, SMALL_SEGMENT_BYTES), (False, LARGE_SEGMENT_BYTES))
        }

    def serve(self, events: Iterable[Event]) -> None:
        for storage, num_bytes, _, _ in events:
            if num_bytes:
                self._live[storage] = self._allocated(num_bytes)
            else:
                self._release(self._live.pop(storage))

    def _allocated(self, num_bytes: int) -> Block:
        size = -(-num_bytes // ROUNDING_BYTES) * ROUNDING_BYTES
        is_small = size <= MOST_SMALL_BYTES
        block = self._found(size, self._free[is_small]) or self._more(size, is_small=is_small)
        if block is None:
            self.give_back()
            self.num_retries += 1
            block = self._more(size, is_small=is_small)
        if block is None:
            raise self._run_out(self._spaces[is_small].missing_bytes(size))
        block.is_free = False
        if block.num_bytes - size >= ROUNDING_BYTES:
            self._give(block.cut(size))
        self.allocated_bytes += block.num_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def _release(self, block: Block) -> None:
        self.allocated_bytes -= block.num_bytes
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free and neighbour.is_mapped:
                self._take(neighbour)
                block.absorb(neighbour)
        self._give(block)

    def give_back(self) -> None:
        for is_small, pool in self._free.items():
            rests = [rest for *_, block in pool for rest in self._spaces[is_small].unmap(block)]
            pool.clear()
            for rest in rests:
                self._give(rest)
        in_pools = sum(block.num_bytes for pool in self._free.values() for *_, block in pool)
        self.reserved_bytes = self.allocated_bytes + in_pools

    def _found(self, size: int, pool: list[_FreeBlock]) -> Block | None:
        """Returns the smallest free block that fits.

        A block that can grow counts with the size it can grow to, so that others are preferred to the open end.
        """
        index = bisect_left(pool, (size,))
        if index == len(pool):
            return None
        while index + 1 < len(pool) and pool[index + 1][3].room_bytes() < pool[index][3].room_bytes():
            index += 1
        return pool.pop(index)[3]

    def _more(self, size: int, *, is_small: bool) -> Block | None:
        """Maps new memory from the driver; None if it has none left."""
        block = self._spaces[is_small].extend(size, take=self._take, give=self._give)
        if block is not None:
            self._take(block)
        return block

    def _give(self, block: Block) -> None:
        block.is_free = True
        insort(self._free[block.is_small], (block.num_bytes, block.segment, block.offset, block))

    def _take(self, block: Block) -> None:
        pool = self._free[block.is_small]
        place = bisect_left(pool, (block.num_bytes, block.segment, block.offset))
        assert pool[place][3] is block, "a free block is in its pool"
        pool.pop(place)
