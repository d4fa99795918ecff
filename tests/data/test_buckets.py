"""Few shapes, none larger than the square, chosen by what the data is like."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.choices.data import ShapesData
from foretune.data.buckets import Bucket, assign, candidate_buckets, choose_buckets
from foretune.data.grouping import buckets_for, members_by_bucket, only_largest
from foretune.data.sources.shapes import Shapes
from tests.data.made import MadeSource

_sizes = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), max_size=40)


@given(
    sizes_px=_sizes,
    resolution_px=st.sampled_from([8, 32, 48, 64, 500, 512, 1024]),
    max_buckets=st.integers(1, 9),
    step_px=st.sampled_from([8, 16, 64]),
)
def test_buckets_are_few_and_fit_the_step(
    sizes_px: list[tuple[int, int]], resolution_px: int, max_buckets: int, step_px: int
):
    buckets = choose_buckets(sizes_px, resolution_px, max_buckets, step_px)
    assert 1 <= len(buckets) <= max_buckets
    assert len(set(buckets)) == len(buckets)
    for bucket in buckets:
        for side_px in (bucket.width_px, bucket.height_px):
            assert side_px % math.gcd(resolution_px, step_px) == 0
            assert side_px > 0
        assert bucket.width_px * bucket.height_px <= resolution_px**2
        assert 1 / 4 <= bucket.width_px / bucket.height_px <= 4
    assert choose_buckets(list(reversed(sizes_px)), resolution_px, max_buckets, step_px) == buckets


def test_sides_lose_less_than_a_step_to_the_area():
    for bucket in candidate_buckets(1024, 64):
        longer_px = max(bucket.width_px, bucket.height_px)
        assert bucket.width_px * bucket.height_px > 1024**2 - 64 * longer_px
    # A wide and a tall one for each of the 16 widths from 1088 to 2048, and the square.
    assert len(candidate_buckets(1024, 64)) == 33


def test_one_bucket_is_the_square_whatever_the_data():
    assert choose_buckets([(4000, 1000)] * 9, 512, 1, 64) == (Bucket(512, 512),)


@pytest.mark.parametrize("max_buckets", [1, 4])
def test_a_resolution_below_the_step_keeps_its_square(max_buckets: int):
    assert choose_buckets([(32, 32)] * 3, 32, max_buckets, 64) == (Bucket(32, 32),)
    assert choose_buckets([(32, 32)] * 3, 48, max_buckets, 64) == (Bucket(48, 48),)


def test_a_resolution_that_is_no_multiple_of_the_step_makes_it_smaller():
    # 16 divides both 48 and 64.
    assert choose_buckets([(20, 10)], 48, 2, 64) == (Bucket(64, 32),)


def test_the_most_used_shapes_are_chosen_first():
    sizes_px = [(1000, 1500)] * 5 + [(1500, 1000)] * 7 + [(800, 800)] * 3 + [(2000, 500)]
    assert choose_buckets(sizes_px, 1024, 3, 64) == (Bucket(1216, 832), Bucket(832, 1216), Bucket(1024, 1024))
    assert choose_buckets(sizes_px, 1024, 2, 64) == (Bucket(1216, 832), Bucket(832, 1216))


def test_an_image_goes_to_the_nearest_aspect_whatever_its_size():
    buckets = (Bucket(512, 512), Bucket(640, 384), Bucket(384, 640))
    assert [assign(*size, buckets) for size in [(10, 10), (4000, 2500), (30, 50), (550, 500)]] == [0, 1, 2, 0]


def test_members_are_grouped_and_repeated():
    source = MadeSource([(64, 64), (128, 64), (60, 64), (130, 64)], repeats=[1, 3, 2, 1])
    choice = ShapesData(kind="shapes", max_buckets=2, bucket_step_px=16)
    buckets = buckets_for(source, [0, 1, 2], choice, resolution_px=64)
    assert len(buckets) == 2
    wide = next(place for place, bucket in enumerate(buckets) if bucket.width_px > bucket.height_px)
    members = members_by_bucket(source, [0, 1, 2], buckets)
    assert list(members[wide]) == [1, 1, 1]
    assert list(members[1 - wide]) == [0, 2, 2]
    one = members_by_bucket(source, [3, 1], (Bucket(64, 64),))
    assert [list(bucket) for bucket in one] == [[3, 1, 1, 1]]


def test_generated_members_stay_a_range():
    buckets = (Bucket(32, 16), Bucket(32, 32))
    members = members_by_bucket(Shapes(10**9, 32), range(10**9), buckets)
    assert members == (range(0), range(10**9))
    assert buckets_for(Shapes(10**9, 32), range(10**9), ShapesData(kind="shapes", max_buckets=4), resolution_px=32) == (
        Bucket(32, 32),
    )


def test_the_largest_bucket_is_one_that_has_samples():
    buckets = (Bucket(32, 32), Bucket(64, 16), Bucket(96, 16))
    assert only_largest(([1, 2], [3], []), buckets) == ([1, 2], range(0), range(0))
    assert only_largest(([1, 2], [3], [4]), buckets) == (range(0), range(0), [4])
