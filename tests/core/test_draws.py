"""Draws differ when anything differs, are spread evenly, and shuffles lose nothing."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.core.draws import Permutation, Purpose, derive_seed, uniform


def test_a_draw_is_the_same_everywhere():
    # Written down once: a change of these numbers changes every run that was ever made.
    assert derive_seed(0, "noise", 0, 0) == 7795200557453017449
    assert uniform(7, "timestep", 3, 1) == 0.9867338848556737


def test_draws_that_differ_in_anything_differ():
    purposes: tuple[Purpose, ...] = ("order", "noise", "posterior", "crop")
    seeds = [
        derive_seed(seed, purpose, *indices)
        for seed, purpose in itertools.product((0, 1), purposes)
        for indices in ((), (0,), (1,), (0, 0), (0, 1), (1, 0), (-1, 0), (0, 0, 0))
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("stride", [(1, 0), (0, 1), (1000, 1)])
def test_uniforms_are_even_and_neighbours_do_not_follow_one_another(stride: tuple[int, int]):
    draws = [uniform(3, "timestep", 5 + place * stride[0], 9 + place * stride[1]) for place in range(4000)]
    assert all(0 <= draw < 1 for draw in draws)
    tenths = [sum(int(draw * 10) == tenth for draw in draws) for tenth in range(10)]
    # 400 each; six standard deviations are 114.
    assert min(tenths) > 286
    assert max(tenths) < 514
    products = [(a - 0.5) * (b - 0.5) for a, b in itertools.pairwise(draws)]
    # The correlation of neighbours is 0, with a standard deviation of 1 / sqrt(4000).
    assert abs(12 * sum(products) / len(products)) < 6 / 4000**0.5


@given(
    length=st.integers(1, 700),
    seed=st.integers(0, 2**63 - 1),
    indices=st.lists(st.integers(-1, 99), max_size=3),
)
def test_a_permutation_is_a_bijection(length: int, seed: int, indices: list[int]):
    permutation = Permutation(length, seed, *indices)
    assert sorted(permutation[place] for place in range(length)) == list(range(length))


def test_a_permutation_refuses_places_outside():
    permutation = Permutation(10, 0)
    for place in (-1, 10):
        with pytest.raises(IndexError):
            permutation[place]


def test_permutations_of_different_epochs_are_unlike():
    first, second = (Permutation(10_000, 0, epoch) for epoch in range(2))
    same = sum(first[place] == second[place] for place in range(10_000))
    # A random pair has one on average.
    assert same < 10
    assert sum(abs(first[place + 1] - first[place]) == 1 for place in range(9999)) < 15


def test_every_element_comes_to_every_place():
    num_epochs, length = 6400, 64
    counts = [[0] * length for _ in range(length)]
    for epoch in range(num_epochs):
        permutation = Permutation(length, 1, epoch)
        for place in range(length):
            counts[place][permutation[place]] += 1
    flat = [count for row in counts for count in row]
    # 100 each; six standard deviations are 60.
    assert min(flat) > 40
    assert max(flat) < 160


def test_a_billion_needs_no_memory():
    permutation = Permutation(10**9, 0)
    assert len({permutation[place] for place in range(5000)}) == 5000
    assert sum(permutation[place] for place in range(5000)) / 5000 == pytest.approx(5e8, rel=0.05)
