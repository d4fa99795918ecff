"""A block of the allocator's memory, linked to its neighbours."""

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Block:
    """In use or free; with expandable segments also a range of addresses that is not mapped yet."""

    num_bytes: int
    segment: int
    offset: int
    is_small: bool
    before: "Block | None" = None
    after: "Block | None" = None
    is_free: bool = False
    is_mapped: bool = True

    def room_bytes(self) -> int:
        """The block's size, or the size it can grow to."""
        grows = self.after is not None and not self.after.is_mapped
        return self.num_bytes + (self.after.num_bytes if self.after is not None and grows else 0)

    def cut(self, num_bytes: int) -> "Block":
        """Shortens this block to `num_bytes`; the remainder follows it, neither free nor in use yet."""
        after, offset = self.after, self.offset + num_bytes
        rest = Block(
            self.num_bytes - num_bytes, self.segment, offset, self.is_small, self, after, False, self.is_mapped
        )
        if after is not None:
            after.before = rest
        self.after, self.num_bytes = rest, num_bytes
        return rest

    def absorb(self, neighbour: "Block") -> None:
        """Merges a neighbour into this block."""
        self.num_bytes += neighbour.num_bytes
        if neighbour is self.before:
            self.offset, self.before = neighbour.offset, neighbour.before
            if self.before is not None:
                self.before.after = self
        else:
            self.after = neighbour.after
            if self.after is not None:
                self.after.before = self
