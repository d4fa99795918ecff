"""The pieces in which training copies and sums. The step allocates by these rules, and plans count by them."""

from collections.abc import Sequence
from typing import NamedTuple

from foretune.core.units import GIB, MIB

SUMMED_AT_ONCE = 1 << 22
"""Numbers of a weight that a checksum converts to int64 at once."""
_LARGEST_BLOCK_BYTES = GIB
_ALIGNED_BYTES = 512
"""Copies begin at multiples of it, as tensors of a device do."""
_NUM_AVERAGED_GROUPS = 16
_SMALLEST_GROUP_BYTES = 64 * MIB


class PageLockedBlock(NamedTuple):
    """One allocation of page-locked memory and the tensors in it."""

    num_bytes: int
    """A power of two: torch rounds page-locked allocations up to one."""
    tensors: tuple[int, ...]
    """Indices of the tensors, in the order in which they lie in the block."""


def aligned(num_bytes: int) -> int:
    """Returns the size of a tensor in a block with the space to the next one."""
    return max(1, -(-num_bytes // _ALIGNED_BYTES)) * _ALIGNED_BYTES


def page_locked_blocks(sizes: Sequence[int]) -> list[PageLockedBlock]:
    """Returns the blocks for tensors of these sizes that stay in page-locked memory.

    Single allocations would take 1.6 times the size of FLUX's weights. Large tensors go first, and small ones fill the
    gaps, so that blocks are nearly full.
    """
    left = sorted((aligned(size), -index) for index, size in enumerate(sizes))
    blocks = []
    while left:
        total, largest = sum(size for size, _ in left), left[-1][0]
        wanted = max(largest, min(_LARGEST_BLOCK_BYTES, 1 << (total.bit_length() - 1)))
        room = num_bytes = 1 << (wanted - 1).bit_length()
        taken: list[int] = []
        remaining: list[tuple[int, int]] = []
        for size, index in reversed(left):
            if size <= room:
                room -= size
                taken.append(-index)
            else:
                remaining.append((size, index))
        left = remaining[::-1]
        blocks.append(PageLockedBlock(num_bytes, tuple(taken)))
    return blocks


def averaged_group_bytes(num_bytes: int) -> int:
    """Returns how much of the weights a moving average on the host copies at once.

    The host waits once for each group. Few groups are few waits, but more host memory. `num_bytes`: of all weights.
    """
    return max(_SMALLEST_GROUP_BYTES, -(-num_bytes // _NUM_AVERAGED_GROUPS))


def averaged_copies_bytes(num_bytes: int) -> int:
    """Returns the most bytes of weights that a moving average has on the host: a group and the next one."""
    return min(num_bytes, 2 * averaged_group_bytes(num_bytes))
