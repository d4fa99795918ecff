"""The order of streamed data: each sample once per epoch, near in place, and a pure function of the step."""

import pickle
from collections import Counter
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretune.data.window_order import UNUSED, WindowOrder


def _order(
    codes: list[int], lengths: list[int], *, width: int = 3, per_step: int = 4, seed: int = 0, num_buckets: int = 3
) -> WindowOrder:
    return WindowOrder(
        np.array(codes, np.uint8),
        list(accumulate(lengths)),
        num_buckets=num_buckets,
        shards_per_window=width,
        samples_per_step=per_step,
        seed=seed,
    )


def _lengths_and_codes(num_shards: int, seed: int = 0) -> tuple[list[int], list[int]]:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 40, num_shards).tolist()
    return lengths, random.choice([0, 1, 2, UNUSED], sum(lengths), p=[0.5, 0.3, 0.1, 0.1]).tolist()


@settings(max_examples=15, deadline=None)
@given(
    num_shards=st.integers(1, 12),
    width=st.integers(1, 14),
    per_step=st.integers(1, 9),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
)
def test_epoch_uses_each_sample_once_and_fills_up_the_last_steps(
    num_shards: int, width: int, per_step: int, seed: int, epoch: int
) -> None:
    lengths, codes = _lengths_and_codes(num_shards, seed)
    if all(code == UNUSED for code in codes):
        return
    order = _order(codes, lengths, width=width, per_step=per_step, seed=seed)
    first = epoch * order.num_steps_per_epoch
    used: Counter[int] = Counter()
    for step in range(first, first + order.num_steps_per_epoch):
        samples = order.step(step)
        assert samples.epoch == epoch
        assert len(samples.samples) == per_step
        assert {codes[index] for index in samples.samples} == {samples.bucket_index}
        used.update(samples.samples)
    assert set(used) == {index for index, code in enumerate(codes) if code != UNUSED}
    for bucket in range(3):
        own = codes.count(bucket)
        repeated = sum(count - 1 for index, count in used.items() if codes[index] == bucket)
        assert repeated == (-own % per_step if own else 0)


def test_any_step_is_known_without_the_ones_before_it() -> None:
    lengths, codes = _lengths_and_codes(9)
    order = _order(codes, lengths)
    in_order = [order.step(step) for step in range(3 * order.num_steps_per_epoch)]
    other = pickle.loads(pickle.dumps(order))  # noqa: S301 - as a loader process gets it
    for step in reversed(range(len(in_order))):
        assert other.step(step) == in_order[step]
    assert _order(codes, lengths, seed=1).step(0) != in_order[0]
    assert in_order[0] != in_order[order.num_steps_per_epoch]


def test_step_reads_from_one_window_and_the_one_after() -> None:
    lengths = [50] * 12
    order = _order([0, 1] * 300, lengths, width=3, num_buckets=2)
    windows = order.windows_from(0, 0)
    shards_of = [next(windows) for _ in range(4)]
    assert sorted(shard for window in shards_of for shard in window) == list(range(12))
    visited = []
    for step in range(order.num_steps_per_epoch):
        window = order.window_of(step)[1]
        allowed = {*shards_of[window], *shards_of[(window + 1) % 4]}
        assert {index // 50 for index in order.step(step).samples} <= allowed
        visited.append(window)
    assert visited == sorted(visited)
    assert next(windows) != shards_of[0], "the next epoch has other windows"


def test_shuffle_mixes_the_shards_of_a_window_evenly() -> None:
    """Over many seeds, each sample is equally often in the first step, and neighbours are not kept together."""
    first, adjacent = Counter[int](), 0
    for seed in range(240):
        order = _order([0] * 24, [8, 8, 8], width=3, per_step=4, seed=seed, num_buckets=1)
        sequence = [index for step in range(6) for index in order.step(step).samples]
        first.update(sequence[:4])
        adjacent += sum(after == before + 1 for before, after in pairwise(sequence))
    # 40 expected each, with a standard deviation of 6; about one pair of neighbours in a shuffled sequence of 24.
    assert len(first) == 24
    assert 16 < min(first.values()) <= max(first.values()) < 64
    assert 0.7 < adjacent / 240 < 1.3


def test_samples_of_a_short_run() -> None:
    lengths, codes = _lengths_and_codes(6)
    order = _order(codes, lengths)
    assert order.samples_until(3) == tuple(sorted({i for step in range(3) for i in order.step(step).samples}))
    assert order.samples_until(10**9) == tuple(index for index, code in enumerate(codes) if code != UNUSED)


def test_set_without_samples_to_train_on_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="no sample to train on"):
        _order([UNUSED] * 4, [2, 2])
