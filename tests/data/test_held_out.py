"""Held-out batches: fixed, even over the timesteps, apart from training's draws."""

from collections import Counter

import pytest
import torch

from foretune.data.buckets import Bucket
from foretune.data.held_out import HELD_OUT, held_out_batches
from tests.data.made import MadeSource, make_maker

_BUCKETS = (Bucket(24, 16), Bucket(16, 16))
_SIZES_PX = [(48, 32), (32, 32), (33, 32)] * 4
_INDICES = [0, 1, 2, 3, 4, 7, 9]


def test_each_sample_is_there_as_often_as_asked_and_in_its_bucket():
    maker = make_maker(MadeSource(_SIZES_PX), buckets=_BUCKETS, batch_size=4)
    batches = list(held_out_batches(maker, _INDICES, num_repeats=3))
    assert Counter(index for batch in batches for index in batch.indices) == dict.fromkeys(_INDICES, 3)
    assert [batch.step for batch in batches] == [HELD_OUT] * len(batches)
    assert [batch.micro for batch in batches] == list(range(len(batches)))
    for batch in batches:
        assert batch.images is not None
        wide = {_SIZES_PX[index] == (48, 32) for index in batch.indices}
        assert wide == {batch.images.shape[-1] == 24}
        assert len(batch) <= 4


@pytest.mark.parametrize("num_repeats", [1, 4])
def test_timesteps_cover_the_range_evenly_for_all_and_for_each(num_repeats: int):
    maker = make_maker(MadeSource(_SIZES_PX), buckets=_BUCKETS)
    batches = list(held_out_batches(maker, _INDICES, num_repeats=num_repeats))
    draws = [draw for batch in batches for draw in batch.uniform.tolist()]
    assert sorted(int(draw * len(draws)) for draw in draws) == list(range(len(draws)))
    by_sample: dict[int, list[int]] = {}
    for batch in batches:
        for index, draw in zip(batch.indices, batch.uniform.tolist(), strict=True):
            by_sample.setdefault(index, []).append(int(draw * num_repeats))
    assert all(sorted(parts) == list(range(num_repeats)) for parts in by_sample.values())


def test_neither_the_batch_size_nor_training_s_choices_change_a_draw():
    source = MadeSource(_SIZES_PX)
    one = make_maker(source, buckets=_BUCKETS, has_autoencoder=True)
    other = make_maker(source, buckets=_BUCKETS, has_autoencoder=True, crop="random", flip=0.5, caption_dropout=1.0)
    first = list(held_out_batches(one, _INDICES, num_repeats=2, batch_size=3))
    second = list(held_out_batches(other, _INDICES, num_repeats=2, batch_size=1))
    assert [index for batch in first for index in batch.indices] == [batch.indices[0] for batch in second]
    assert [caption for batch in first for caption in batch.captions] == [batch.captions[0] for batch in second]
    assert all(caption for batch in first for caption in batch.captions)
    for name in ("noise", "posterior_noise", "images"):
        apart = [tensor for batch in first for tensor in getattr(batch, name)]
        assert all(torch.equal(a, getattr(b, name)[0]) for a, b in zip(apart, second, strict=True)), name
    assert torch.equal(torch.cat([b.uniform for b in first]), torch.cat([b.uniform for b in second]))


def test_no_draw_is_one_of_training_s():
    maker = make_maker(MadeSource([(16, 16)] * 12), batch_size=6)
    training = {tuple(noise.flatten().tolist()) for micro in range(20) for noise in maker[micro].noise}
    held_out = [
        tuple(noise.flatten().tolist()) for batch in held_out_batches(maker, range(12)) for noise in batch.noise
    ]
    assert len(set(held_out)) == 12
    assert training.isdisjoint(held_out)


def test_nothing_held_out_is_no_batch():
    assert list(held_out_batches(make_maker(), [])) == []
