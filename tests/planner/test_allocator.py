"""The allocator's rules, one by one, on hand-computed cases; and that it never loses or doubles a byte."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.core.units import MIB
from foretune.planner.allocator import (
    _ADDRESS_BITS,
    _ADDRESSES,
    ROUNDING_BYTES,
    CachingAllocator,
    DeviceFullError,
    PlainSegments,
)
from foretune.planner.block_events import Event
from foretune.planner.expandable_segments import ExpandableSegments
from foretune.planner.replay import replay


def _made(storage: int, num_bytes: int) -> Event:
    return Event(storage, num_bytes, "temporary", "forward")


def _released(storage: int) -> Event:
    return Event(storage, 0, "temporary", "forward")


class Device:
    """An allocator that is asked for one thing after the other."""

    def __init__(self, *, expandable_segments: bool = False, limit_bytes: int | None = None) -> None:
        kind = ExpandableSegments if expandable_segments else PlainSegments
        self.allocator: CachingAllocator = kind(limit_bytes=limit_bytes)
        self._num_made = 0

    def allocate(self, num_bytes: int) -> int:
        """Its number."""
        self._num_made += 1
        self.allocator.serve([_made(self._num_made, num_bytes)])
        return self._num_made

    def release(self, number: int) -> None:
        self.allocator.serve([_released(number)])

    def place(self, number: int) -> tuple[int, int, int]:
        """Segment, offset in bytes, bytes."""
        if isinstance(self.allocator, ExpandableSegments):
            found = self.allocator._live[number]
            return found.segment, found.offset, found.num_bytes
        assert isinstance(self.allocator, PlainSegments)
        block = self.allocator._live[number]
        address, size = block & _ADDRESSES, block >> _ADDRESS_BITS
        segment = max(start for start in self.allocator._segments if start <= address)
        assert address + size <= segment + self.allocator._segments[segment]
        return segment, (address - segment) * ROUNDING_BYTES, size * ROUNDING_BYTES

    def num_bytes(self, number: int) -> int:
        return self.place(number)[2]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.allocator, name)


def test_small_requests_share_a_segment_of_2_mib() -> None:
    allocator = Device()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(1)
    assert allocator.reserved_bytes == 4 * MIB
    assert allocator.allocated_bytes == 2 * MIB + 512


def test_middle_requests_come_from_segments_of_20_mib() -> None:
    allocator = Device()
    allocator.allocate(MIB + 1)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.allocate(9 * MIB)
    allocator.allocate(9 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    # 19 MiB and a bit are in use, and the rest is too small for three.
    allocator.allocate(3 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_large_requests_have_segments_of_their_own_rounded_to_2_mib() -> None:
    allocator = Device()
    block = allocator.allocate(25 * MIB + 1)
    assert allocator.reserved_bytes == 26 * MIB
    # A rest of at most 1 MiB is not split off: it counts as allocated.
    assert allocator.num_bytes(block) == 26 * MIB


def test_a_freed_segment_is_used_again_and_kept() -> None:
    allocator = Device()
    allocator.release(allocator.allocate(100 * MIB))
    allocator.allocate(40 * MIB)
    allocator.allocate(60 * MIB)
    assert allocator.reserved_bytes == 100 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = Device()
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
        allocator = Device(expandable_segments=expandable)
        blocks = [allocator.allocate(40 * MIB) for _ in range(3)]
        allocator.release(blocks[0])
        allocator.release(blocks[1])
        allocator.allocate(80 * MIB)
        reserved[expandable] = allocator.reserved_bytes
    assert reserved == {False: 200 * MIB, True: 120 * MIB}


def test_replay_follows_events() -> None:
    events = [_made(0, 30 * MIB), _made(1, 10 * MIB), _released(0), _made(2, 20 * MIB)]
    allocator = replay(events)
    assert allocator.peak_allocated_bytes == 40 * MIB
    assert allocator.allocated_bytes == 30 * MIB
    assert allocator.reserved_bytes == 40 * MIB


@pytest.mark.parametrize(
    ("num_bytes", "reserved_bytes"),
    [
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_the_borders_between_the_sizes_of_segments(num_bytes: int, reserved_bytes: int) -> None:
    allocator = Device()
    allocator.allocate(num_bytes)
    assert allocator.reserved_bytes == reserved_bytes


def test_a_small_rest_is_split_off_from_512_bytes_a_large_one_above_1_mib() -> None:
    allocator = Device()
    assert allocator.num_bytes(allocator.allocate(MIB - 512)) == MIB - 512
    assert allocator.num_bytes(allocator.allocate(MIB)) == MIB
    assert allocator.reserved_bytes == 2 * MIB
    allocator.release(allocator.allocate(20 * MIB))
    assert allocator.num_bytes(allocator.allocate(19 * MIB)) == 20 * MIB
    allocator.release(allocator.allocate(30 * MIB))
    assert allocator.num_bytes(allocator.allocate(29 * MIB - 512)) == 29 * MIB - 512


def test_small_requests_never_come_from_large_segments() -> None:
    allocator = Device()
    allocator.release(allocator.allocate(100 * MIB))
    allocator.allocate(MIB)
    assert allocator.reserved_bytes == 102 * MIB


def test_pages_of_expandable_segments_have_2_and_20_mib() -> None:
    allocator = Device(expandable_segments=True)
    allocator.allocate(512)
    assert allocator.reserved_bytes == 2 * MIB
    assert allocator.num_bytes(allocator.allocate(25 * MIB)) == 25 * MIB
    assert allocator.reserved_bytes == 42 * MIB
    # The 15 MiB that are left of the second page serve first.
    allocator.allocate(16 * MIB)
    assert allocator.reserved_bytes == 62 * MIB


def test_a_large_expandable_rest_is_split_off_however_small() -> None:
    allocator = Device(expandable_segments=True)
    assert allocator.num_bytes(allocator.allocate(20 * MIB - 512)) == 20 * MIB - 512
    assert allocator.allocated_bytes == 20 * MIB - 512


def test_the_open_end_is_taken_last() -> None:
    """A hole of 10 MiB is preferred to a smaller free end, which could still grow."""
    allocator = Device(expandable_segments=True)
    hole = allocator.allocate(10 * MIB)
    allocator.allocate(25 * MIB)
    allocator.release(hole)
    # Free now: the hole of 10 MiB and an end of 5 MiB.
    assert allocator.place(allocator.allocate(4 * MIB))[1] == 0


def test_a_full_device_takes_back_what_is_wholly_free_and_tries_again() -> None:
    events = [_made(0, 60 * MIB), _released(0), _made(1, 80 * MIB)]
    without_end = replay(events)
    assert (without_end.peak_reserved_bytes, without_end.num_retries) == (140 * MIB, 0)
    limited = replay(events, limit_bytes=100 * MIB)
    assert (limited.peak_reserved_bytes, limited.reserved_bytes) == (80 * MIB, 80 * MIB)
    assert (limited.num_retries, limited.ran_out_of_memory) == (1, False)


def test_a_segment_in_use_is_not_given_back() -> None:
    """60 of 100 MiB are free, but in a segment of which a part is in use: 80 MiB more do not fit into 150."""
    events = [_made(0, 100 * MIB), _released(0), _made(1, 40 * MIB), _made(2, 80 * MIB)]
    allocator = replay(events, limit_bytes=150 * MIB)
    assert allocator.ran_out_of_memory
    assert allocator.num_retries == 1
    assert allocator.least_needed_bytes == 180 * MIB
    assert allocator.allocated_bytes == 40 * MIB


def test_expandable_segments_give_back_pages_where_segments_cannot() -> None:
    """The same requests: the pages of the free 60 MiB are taken away and put behind the 80 MiB."""
    events = [_made(0, 100 * MIB), _released(0), _made(1, 40 * MIB), _made(2, 80 * MIB)]
    allocator = replay(events, limit_bytes=150 * MIB, expandable_segments=True)
    assert not allocator.ran_out_of_memory
    assert allocator.peak_reserved_bytes == 120 * MIB


def test_pages_in_the_middle_are_unmapped_and_filled_again() -> None:
    allocator = Device(expandable_segments=True, limit_bytes=120 * MIB)
    first, middle, last = (allocator.allocate(40 * MIB) for _ in range(3))
    allocator.release(middle)
    small = allocator.allocate(10 * MIB)
    assert allocator.place(small)[1] == 40 * MIB
    with pytest.raises(DeviceFullError):
        allocator.allocate(40 * MIB)
    # One page of the hole is wholly free, one is not.
    assert allocator.reserved_bytes == 100 * MIB
    assert allocator.least_needed_bytes == 140 * MIB
    for block in (first, small, last):
        allocator.release(block)
    assert allocator.place(allocator.allocate(100 * MIB))[1] == 0
    assert allocator.reserved_bytes <= 120 * MIB


def test_what_never_fits_is_said_with_what_it_needs() -> None:
    for expandable in (False, True):
        allocator = replay([_made(0, 200 * MIB)], limit_bytes=100 * MIB, expandable_segments=expandable)
        assert allocator.ran_out_of_memory
        assert allocator.least_needed_bytes == 200 * MIB
        assert allocator.allocated_bytes == 0


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB), st.integers(0, 10**6)), max_size=60),
    st.booleans(),
    st.integers(20, 200),
)
def test_a_limit_is_never_exceeded(steps: list[tuple[bool, int, int]], expandable: bool, limit_mib: int) -> None:
    allocator = Device(expandable_segments=expandable, limit_bytes=limit_mib * MIB)
    live: list[Any] = []
    for wants, num_bytes, pick in steps:
        if live and not wants:
            allocator.release(live.pop(pick % len(live)))
            continue
        try:
            live.append(allocator.allocate(num_bytes))
        except DeviceFullError:
            assert allocator.least_needed_bytes > limit_mib * MIB
        assert allocator.reserved_bytes <= limit_mib * MIB
        assert allocator.allocated_bytes == sum(map(allocator.num_bytes, live)) <= allocator.reserved_bytes
    for block in live:
        allocator.release(block)
    allocator.give_back()
    assert allocator.reserved_bytes == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB), st.integers(0, 10**6)), max_size=80), st.booleans())
def test_no_byte_is_lost_or_doubled(steps: list[tuple[bool, int, int]], expandable: bool) -> None:
    allocator = Device(expandable_segments=expandable)
    live: list[Any] = []
    for wants, num_bytes, pick in steps:
        if wants or not live:
            live.append(allocator.allocate(num_bytes))
        else:
            allocator.release(live.pop(pick % len(live)))
        for (segment, start, size), (other, next_start, _) in pairwise(sorted(map(allocator.place, live))):
            assert segment != other or start + size <= next_start
        assert allocator.allocated_bytes == sum(map(allocator.num_bytes, live)) <= allocator.reserved_bytes
    for block in live:
        allocator.release(block)
    assert allocator.allocated_bytes == 0
    # Everything is free and joined again: each pool's largest block serves a request of its whole size.
    reserved = allocator.reserved_bytes
    if expandable:
        large_bytes = [size for size, *_ in allocator._free[False]]
    else:
        large_bytes = [(block >> _ADDRESS_BITS) * ROUNDING_BYTES for block in allocator._free_large]
    if large_bytes:
        allocator.allocate(max(large_bytes))
        assert allocator.reserved_bytes == reserved
