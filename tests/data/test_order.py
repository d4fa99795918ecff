"""The order of samples: each once an epoch, in chunks of one bucket, found without going through the others."""

import itertools
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.data.order import Order, StepSamples
from tests.work_counts import work_of

_buckets = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


def _members(lengths: list[int]) -> list[range]:
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    return [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]


@given(
    lengths=_buckets,
    samples_per_step=st.integers(1, 13),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 9),
)
def test_an_epoch_sees_everything_and_fills_up_from_the_same_bucket(
    lengths: list[int], samples_per_step: int, seed: int, epoch: int
):
    members = _members(lengths)
    order = Order(members, samples_per_step, seed)
    assert order.num_steps_per_epoch == sum(-(-length // samples_per_step) for length in lengths)
    first = epoch * order.num_steps_per_epoch
    steps = [order.step(step) for step in range(first, first + order.num_steps_per_epoch)]
    seen: Counter[int] = Counter()
    for step in steps:
        assert step.epoch == epoch
        assert len(step.samples) == samples_per_step
        assert all(sample in members[step.bucket_index] for sample in step.samples)
        seen.update(step.samples)
    for bucket in members:
        counts = [seen[sample] for sample in bucket]
        chunks = -(-len(bucket) // samples_per_step)
        assert sum(counts) == chunks * samples_per_step
        # What is filled up goes round the bucket: no member is ahead of another by more than one.
        assert not counts or (min(counts) >= 1 and max(counts) - min(counts) <= 1)


@given(lengths=_buckets, samples_per_step=st.integers(1, 9), step=st.integers(0, 10**7))
def test_a_step_does_not_depend_on_what_was_asked_before(lengths: list[int], samples_per_step: int, step: int):
    order = Order(_members(lengths), samples_per_step, 3)
    asked_late = order.step(step)
    for other in (0, 5, step + 1):
        order.step(other)
    assert order.step(step) == asked_late == Order(_members(lengths), samples_per_step, 3).step(step)


def test_epochs_and_seeds_are_shuffled_differently():
    def epoch(seed: int, number: int) -> list[int]:
        order = Order([range(100)], 10, seed)
        return [sample for step in range(number * 10, number * 10 + 10) for sample in order.step(step).samples]

    orders = [epoch(0, 0), epoch(0, 1), epoch(1, 0), list(range(100))]
    for place, one in enumerate(orders):
        assert sorted(one) == list(range(100))
        for other in orders[:place]:
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 12


def test_seed_and_epoch_decide_both_shuffles():
    """The members of a bucket, and the steps of an epoch: either alone would leave half of the order the same."""

    def members(seed: int, epoch: int) -> tuple[int, ...]:
        # One step an epoch: only the members can differ.
        return Order([range(100)], 100, seed).step(epoch).samples

    def buckets(seed: int, epoch: int) -> tuple[int, ...]:
        # Buckets of one step each: only the order of the steps can differ.
        order = Order(_members([2] * 100), 2, seed)
        return tuple(order.step(100 * epoch + step).bucket_index for step in range(100))

    for shuffled in (members, buckets):
        first, another_seed, another_epoch = shuffled(0, 0), shuffled(1, 0), shuffled(0, 1)
        assert sorted(first) == sorted(another_seed) == sorted(another_epoch) == list(range(100))
        for other in (another_seed, another_epoch):
            assert sum(a == b for a, b in zip(first, other, strict=True)) < 12


def test_buckets_come_mixed():
    order = Order(_members([200, 200]), 4, 0)
    buckets = [order.step(step).bucket_index for step in range(100)]
    changes = sum(one != other for one, other in itertools.pairwise(buckets))
    assert 30 < changes < 70
    assert buckets != [order.step(step).bucket_index for step in range(100, 200)]


def test_repeats_are_members_given_several_times():
    order = Order([[7, 7, 7, 8]], 2, 0)
    assert Counter(sample for step in range(2) for sample in order.step(step).samples) == {7: 3, 8: 1}


def test_samples_until_are_those_of_the_steps():
    order = Order(_members([50, 30]), 4, 1)
    assert order.samples_until(3) == tuple(sorted({sample for step in range(3) for sample in order.step(step).samples}))
    assert order.samples_until(10**9) == tuple(range(80))


def _step_of(buckets: list[range], step: int) -> StepSamples:
    return Order(buckets, 64, 0).step(step)


@pytest.mark.parametrize("step", [0, 10**7, 10**12])
def test_a_billion_samples_cost_no_more_than_ten_thousand_at_any_step(step: int):
    """A few draws for each sample of the step, whatever is not in it. The few come first: a list of all would fill
    the memory.
    """
    for num_samples in (64 * 10**3, 64 * 10**5, 64 * 10**7):
        buckets = [range(num_samples // 2), range(num_samples // 2, num_samples)]
        work = work_of(partial(_step_of, buckets, step))
        assert work.num_calls < 64 * 100
        assert work.peak_bytes < 64 * 1000
        samples = _step_of(buckets, step).samples
        assert len(set(samples)) == 64
        assert max(samples) < num_samples
        assert Order(buckets, 64, 0).num_steps_per_epoch == num_samples // 64


def test_no_samples_are_our_mistake():
    nothing: list[list[list[int]]] = [[], [[]], [[], []]]
    for members in nothing:
        with pytest.raises(AssertionError):
            Order(members, 2, 0)
