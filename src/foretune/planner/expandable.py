"""Expandable segments: a pool as one range of addresses behind which memory is put page by page.

Pages have 2 MiB for small requests and 20 MiB for large ones. New pages go to the lowest address where the request has
room, joined to the free block in front of them. When the device is full, pages that are wholly free are taken away,
wherever they are, and may be put back elsewhere: that is why fragmentation costs little here.
"""

from collections.abc import Callable

from foretune.planner.blocks import Block

# Larger than any device; the source takes 9/8 of the device's memory, which the pages can never fill.
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
        """A free block of at least `size`, made by mapping pages; None if the driver has none left.

        What was mapped before a page was refused stays in the pool, as it does in the source.
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
        """Takes the pages that lie wholly within a free block; returns what is left of it, still mapped."""
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
        """What has to be mapped for a request at the lowest place where it has room."""
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
        """Puts pages behind the first bytes of an unmapped block and joins it with its free neighbours."""
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
