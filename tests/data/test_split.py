"""The held-out share: by content, never empty where it matters, quick at any size."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.data.sources.base import SampleInfo
from foretune.data.sources.shapes import Shapes
from foretune.data.split import split
from tests.data.made import MadeSource
from tests.work_counts import work_of


def _fingerprints(source: MadeSource, indices: Iterable[int]) -> set[str]:
    return {source.info(index).fingerprint for index in indices}


@given(num_samples=st.integers(2, 60), share=st.floats(0.001, 1), generated=st.booleans())
def test_both_sides_together_are_all_and_neither_is_empty(num_samples: int, share: float, generated: bool):
    source = Shapes(num_samples) if generated else MadeSource([(8, 8)] * num_samples)
    train, held_out = split(source, share)
    assert sorted([*train, *held_out]) == list(range(num_samples))
    assert len(train) >= 1
    assert len(held_out) >= 1


def test_the_share_is_met_on_average():
    _, held_out = split(MadeSource([(8, 8)] * 4000), 0.1)
    # 400 on average, with a standard deviation of 19.
    assert 290 < len(held_out) < 510


def test_adding_an_image_moves_no_other():
    # The second source has one image more, in front, so that every index moves.
    before, after = MadeSource([(8, 8)] * 200, first=1), MadeSource([(8, 8)] * 201, first=0)
    held_out_before = _fingerprints(before, split(before, 0.2)[1])
    held_out_after = _fingerprints(after, split(after, 0.2)[1])
    assert held_out_after - {after.info(0).fingerprint} == held_out_before
    assert len(held_out_before) > 10


def test_equal_images_are_on_the_same_side():
    class Doubled(MadeSource):
        def info(self, index: int) -> SampleInfo:
            return super().info(index // 2)

    train, held_out = split(Doubled([(8, 8)] * 400), 0.3)
    assert {index // 2 for index in train}.isdisjoint(index // 2 for index in held_out)
    assert len(held_out) > 40


def test_without_a_share_or_with_one_sample_nothing_is_held_out():
    assert [list(side) for side in split(MadeSource([(8, 8)] * 3), 0)] == [[0, 1, 2], []]
    assert [list(side) for side in split(MadeSource([(8, 8)]), 0.5)] == [[0], []]


@pytest.mark.parametrize("num_samples", [10**4, 10**6, 10**9])
def test_generated_samples_are_not_listed_however_many_there_are(num_samples: int):
    """Ten thousand show it first: whoever lists a billion fills the memory."""
    work = work_of(lambda: split(Shapes(num_samples), 0.05))
    assert work.num_calls < 100
    assert work.peak_bytes < 10_000
    train, held_out = split(Shapes(num_samples), 0.05)
    assert (len(train), len(held_out)) == (num_samples * 95 // 100, num_samples * 5 // 100)
    assert held_out[0] == len(train)
