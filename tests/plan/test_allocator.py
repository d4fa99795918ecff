"""The allocator's rules, one by one, on hand-computed cases; and that it never loses or doubles a byte."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foretune.core.units import MIB
from foretune.plan.allocator import CachingAllocator, replay
from foretune.plan.expansion import Event


def test_small_requests_share_a_segment_of_2_mib() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(1)
    assert allocator.reserved_bytes == 4 * MIB
    assert allocator.allocated_bytes == 2 * MIB + 512


def test_middle_requests_come_from_segments_of_20_mib() -> None:
    allocator = CachingAllocator()
    allocator.allocate(MIB + 1)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.allocate(9 * MIB)
    allocator.allocate(9 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    # 19 MiB and a bit are in use, and the rest is too small for three.
    allocator.allocate(3 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_large_requests_have_segments_of_their_own_rounded_to_2_mib() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(25 * MIB + 1)
    assert allocator.reserved_bytes == 26 * MIB
    # A rest of at most 1 MiB is not split off: it counts as allocated.
    assert block.num_bytes == 26 * MIB


def test_a_freed_segment_is_used_again_and_kept() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(100 * MIB))
    allocator.allocate(40 * MIB)
    allocator.allocate(60 * MIB)
    assert allocator.reserved_bytes == 100 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(100 * MIB), allocator.allocate(50 * MIB)
    allocator.release(large)
    allocator.release(small)
    allocator.allocate(50 * MIB)
    allocator.allocate(100 * MIB)
    assert allocator.reserved_bytes == 150 * MIB


def test_fragmentation_costs_a_segment_that_expandable_segments_save() -> None:
    """Free space in two pieces, neither large enough: the reason why reserved memory exceeds allocated memory."""
    reserved = {}
    for expandable in (False, True):
        allocator = CachingAllocator(expandable_segments=expandable)
        blocks = [allocator.allocate(40 * MIB) for _ in range(3)]
        allocator.release(blocks[0])
        allocator.release(blocks[1])
        allocator.allocate(80 * MIB)
        reserved[expandable] = allocator.reserved_bytes
    assert reserved == {False: 200 * MIB, True: 120 * MIB}


def test_replay_follows_events() -> None:
    events = [Event(0, 30 * MIB, 0, 0), Event(1, 10 * MIB, 0, 0), Event(0, 0, 0, 0), Event(2, 20 * MIB, 0, 0)]
    allocator = replay(events)
    assert allocator.peak_allocated_bytes == 40 * MIB
    assert allocator.allocated_bytes == 30 * MIB
    assert allocator.reserved_bytes == 40 * MIB


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB), st.integers(0, 10**6)), max_size=80), st.booleans())
def test_no_byte_is_lost_or_doubled(steps: list[tuple[bool, int, int]], expandable: bool) -> None:
    allocator = CachingAllocator(expandable_segments=expandable)
    live: list[Any] = []
    for wants, num_bytes, pick in steps:
        if wants or not live:
            live.append(allocator.allocate(num_bytes))
        else:
            allocator.release(live.pop(pick % len(live)))
        places = sorted((block.segment, block.is_small, block.offset, block.num_bytes) for block in live)
        for (segment, small, start, size), (other, other_small, next_start, _) in pairwise(places):
            assert (segment, small) != (other, other_small) or start + size <= next_start
        assert allocator.allocated_bytes == sum(block.num_bytes for block in live) <= allocator.reserved_bytes
    for block in live:
        allocator.release(block)
    assert allocator.allocated_bytes == 0
    # Everything is free and joined again: each pool's largest block serves a request of its whole size.
    reserved = allocator.reserved_bytes
    large = [entry[1].num_bytes for entry in allocator._free[False]]
    if large:
        allocator.allocate(max(large))
        assert allocator.reserved_bytes == reserved
