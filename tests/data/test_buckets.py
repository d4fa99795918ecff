"""Few shapes, none larger than what is asked for, chosen by what the data is like."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.choices.data import ShapesData
from foretune.choices.picture_size import legal_num_frames
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket, SampleSize, assign, candidate_buckets, choose_buckets
from foretune.data.grouping import buckets_for, members_by_bucket, only_largest, refuse_short_clips
from foretune.data.sources.shapes import Shapes
from tests.data.made import MadeSource

FRAMES_PER_LATENT = 4
_sides = st.integers(1, 5000)
_sizes = st.lists(st.builds(SampleSize, _sides, _sides, st.integers(1, 200)), max_size=40)
_largest = st.builds(
    lambda side, frames: Bucket(side[0], side[1], frames),
    st.sampled_from([(8, 8), (32, 32), (48, 48), (64, 64), (500, 500), (512, 512), (1024, 1024), (416, 240), (48, 96)]),
    st.sampled_from([None, 1, 5, 81]),
)


def _sizes_of(*sides_px: tuple[int, int]) -> list[SampleSize]:
    return [SampleSize(*sides) for sides in sides_px]


@given(sizes=_sizes, largest=_largest, max_buckets=st.integers(1, 9), step_px=st.sampled_from([8, 16, 64]))
def test_buckets_are_few_and_fit_the_step(sizes: list[SampleSize], largest: Bucket, max_buckets: int, step_px: int):
    buckets = choose_buckets(sizes, largest, max_buckets, step_px, FRAMES_PER_LATENT)
    assert 1 <= len(buckets) <= max_buckets
    assert len(set(buckets)) == len(buckets)
    for bucket in buckets:
        for side_px in (bucket.width_px, bucket.height_px):
            assert side_px % math.gcd(largest.width_px, largest.height_px, step_px) == 0
            assert side_px > 0
        assert bucket.width_px * bucket.height_px <= largest.width_px * largest.height_px
        assert 1 / 4 <= bucket.width_px / bucket.height_px <= 4
        assert (bucket.num_frames is None) == (largest.num_frames is None)
        assert (bucket.num_frames or 1) <= (largest.num_frames or 1)
        assert (bucket.num_frames or 1) % 4 == 1
    assert choose_buckets(list(reversed(sizes)), largest, max_buckets, step_px, FRAMES_PER_LATENT) == buckets


@given(sizes=_sizes.filter(bool), largest=_largest)
def test_with_enough_buckets_every_clip_has_the_most_frames_that_it_fills(sizes: list[SampleSize], largest: Bucket):
    buckets = choose_buckets(sizes, largest, 1000, 64, FRAMES_PER_LATENT)
    for size in sizes:
        chosen = buckets[assign(size, buckets)]
        most = min(legal_num_frames(size.num_frames, FRAMES_PER_LATENT), largest.num_frames or 1)
        assert (chosen.num_frames or 1) == most


def test_sides_lose_less_than_a_step_to_the_area():
    for bucket in candidate_buckets(Bucket(1024, 1024), 64):
        longer_px = max(bucket.width_px, bucket.height_px)
        assert bucket.width_px * bucket.height_px > 1024**2 - 64 * longer_px
    # A wide and a tall one for each of the 16 widths from 1088 to 2048, and the square.
    assert len(candidate_buckets(Bucket(1024, 1024), 64)) == 33


def test_one_bucket_is_the_square_whatever_the_data():
    assert choose_buckets(_sizes_of((4000, 1000)) * 9, Bucket(512, 512), 1, 64) == (Bucket(512, 512),)


@pytest.mark.parametrize("max_buckets", [1, 4])
def test_a_resolution_below_the_step_keeps_its_square(max_buckets: int):
    assert choose_buckets(_sizes_of((32, 32)) * 3, Bucket(32, 32), max_buckets, 64) == (Bucket(32, 32),)
    assert choose_buckets(_sizes_of((32, 32)) * 3, Bucket(48, 48), max_buckets, 64) == (Bucket(48, 48),)


def test_a_resolution_that_is_no_multiple_of_the_step_makes_it_smaller():
    # 16 divides both 48 and 64.
    assert choose_buckets(_sizes_of((20, 10)), Bucket(48, 48), 2, 64) == (Bucket(64, 32),)


def test_the_most_used_shapes_are_chosen_first():
    sizes = _sizes_of(*[(1000, 1500)] * 5, *[(1500, 1000)] * 7, *[(800, 800)] * 3, (2000, 500))
    square = Bucket(1024, 1024)
    assert choose_buckets(sizes, square, 3, 64) == (Bucket(1216, 832), Bucket(832, 1216), square)
    assert choose_buckets(sizes, square, 2, 64) == (Bucket(1216, 832), Bucket(832, 1216))


def test_a_largest_that_is_not_square_is_the_first_candidate():
    candidates = candidate_buckets(Bucket(416, 240, 33), 16)
    assert candidates[0] == Bucket(416, 240, 33)
    assert Bucket(304, 304, 33) in candidates
    assert Bucket(240, 416, 33) in candidates
    assert len(set(candidates)) == len(candidates)


def test_clips_of_several_lengths_have_buckets_of_their_own():
    sizes = [SampleSize(416, 240, 90)] * 3 + [SampleSize(416, 240, 20)] * 2 + [SampleSize(240, 416, 90)]
    buckets = choose_buckets(sizes, Bucket(416, 240, 33), 8, 16, FRAMES_PER_LATENT)
    assert buckets == (Bucket(416, 240, 33), Bucket(416, 240, 17), Bucket(240, 416, 33))
    assert [assign(size, buckets) for size in (sizes[0], sizes[3], sizes[5])] == [0, 1, 2]
    # Length before shape: a long upright clip is not cut to the short bucket.
    assert assign(SampleSize(240, 416, 40), buckets[:2]) == 0


def test_one_bucket_has_the_length_of_the_shortest_clips():
    sizes = [SampleSize(416, 240, num_frames) for num_frames in (81, 81, 81, 77, 77, 73, 73, 9)]
    buckets = choose_buckets(sizes, Bucket(416, 240, 81), 3, 16, FRAMES_PER_LATENT)
    assert [bucket.num_frames for bucket in buckets] == [81, 77, 9]
    assert [assign(size, buckets) for size in sizes] == [0, 0, 0, 1, 1, 2, 2, 2]


def test_clips_that_fill_no_bucket_are_named():
    source = MadeSource([(8, 8)] * 3, frames=[9, 4, 2])
    said = r"2 of 3 samples have fewer than 5 frames: .*\(4\), .*\(2\)\. .*num_frames=1\)"
    with pytest.raises(UserError, match=said):
        refuse_short_clips(source, [0, 1, 2], (Bucket(8, 8, 5),), FRAMES_PER_LATENT)
    refuse_short_clips(source, [0], (Bucket(8, 8, 5),), FRAMES_PER_LATENT)
    refuse_short_clips(source, [0, 1, 2], (Bucket(8, 8, 5), Bucket(8, 8, 1)), FRAMES_PER_LATENT)
    refuse_short_clips(source, [0, 1, 2], (Bucket(8, 8),), FRAMES_PER_LATENT)


def test_an_image_goes_to_the_nearest_aspect_whatever_its_size():
    buckets = (Bucket(512, 512), Bucket(640, 384), Bucket(384, 640))
    assert [assign(size, buckets) for size in _sizes_of((10, 10), (4000, 2500), (30, 50), (550, 500))] == [0, 1, 2, 0]


def test_members_are_grouped_and_repeated():
    source = MadeSource([(64, 64), (128, 64), (60, 64), (130, 64)], repeats=[1, 3, 2, 1])
    choice = ShapesData(kind="shapes", max_buckets=2, bucket_step_px=16)
    buckets = buckets_for(source, [0, 1, 2], choice, Bucket(64, 64))
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
    choice = ShapesData(kind="shapes", max_buckets=4)
    assert buckets_for(Shapes(10**9, 32), range(10**9), choice, Bucket(32, 32)) == (Bucket(32, 32),)


def test_the_largest_bucket_is_one_that_has_samples():
    buckets = (Bucket(32, 32), Bucket(64, 16), Bucket(96, 16))
    assert only_largest(([1, 2], [3], []), buckets) == ([1, 2], range(0), range(0))
    assert only_largest(([1, 2], [3], [4]), buckets) == (range(0), range(0), [4])
