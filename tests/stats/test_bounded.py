"""Intervals of means between bounds: inside them, and true as often as they say, where Student's is neither."""

import random
import statistics
from collections.abc import Callable

import pytest

from foretune.core.scores import NEVER_NEGATIVE, Bounds
from foretune.stats.bounded import bounded_difference, bounded_mean, wilson
from foretune.stats.intervals import mean_interval

SHARE = Bounds(0.0, 1.0)
NUM_SIMULATIONS = 800
Draw = Callable[[random.Random], float]


def score(mean: float, spread: float) -> Draw:
    """A score between 0 and 1 with this mean and standard deviation."""
    size = mean * (1 - mean) / spread**2 - 1
    return lambda rng: rng.betavariate(mean * size, (1 - mean) * size)


def share_of(num: int, mean: float, spread: float) -> Draw:
    """A share of so many outcomes, whose chance differs from run to run."""
    chance = score(mean, spread)

    def draw(rng: random.Random) -> float:
        limit = chance(rng)
        return sum(rng.random() < limit for _ in range(num)) / num

    return draw


def coverage(draw: Draw, truth: float, num_runs: int, num_outcomes: int = 0) -> tuple[float, float, float]:
    """How often the truth is held: by the bounded interval, by Student's; and how often Student's leaves the bounds."""
    rng = random.Random(7)
    held = student = outside = 0
    for _ in range(NUM_SIMULATIONS):
        values = [draw(rng) for _ in range(num_runs)]
        _, low, high = bounded_mean(values, 0.95, SHARE, num_outcomes=num_outcomes * num_runs)
        assert 0 <= low <= statistics.fmean(values) <= high <= 1
        held += low <= truth <= high
        _, low, high = mean_interval(values, 0.95)
        student += low <= truth <= high
        outside += low < 0 or high > 1
    return held / NUM_SIMULATIONS, student / NUM_SIMULATIONS, outside / NUM_SIMULATIONS


@pytest.mark.parametrize("num_runs", [2, 3, 5])
@pytest.mark.parametrize(("mean", "spread"), [(0.5, 0.1), (0.8, 0.1), (0.95, 0.04)])
def test_a_score_is_held_as_often_as_promised(mean: float, spread: float, num_runs: int) -> None:
    held, _, _ = coverage(score(mean, spread), mean, num_runs)
    # Of 800 intervals of 95 %, 93 % or more hold the truth in all but 1 of 200 cases; near a bound 94 % are reached.
    assert 0.925 <= held <= 0.97


def test_near_a_bound_students_interval_leaves_it_and_misses_the_truth() -> None:
    held, student, outside = coverage(score(0.98, 0.02), 0.98, 3)
    assert outside > 0.8
    assert student < 0.9
    assert held > student + 0.04


@pytest.mark.parametrize("num_runs", [2, 3, 5])
@pytest.mark.parametrize(("mean", "spread"), [(0.5, 0.1), (0.92, 0.03), (0.98, 0.01)])
def test_a_share_in_steps_is_held_too(mean: float, spread: float, num_runs: int) -> None:
    held, _, _ = coverage(share_of(24, mean, spread), mean, num_runs, 24)
    assert held >= 0.94


def test_equal_shares_are_not_certain_and_students_interval_takes_them_for_it() -> None:
    held, student, _ = coverage(share_of(24, 0.98, 0.01), 0.98, 3, 24)
    assert student < 0.8
    assert held > 0.97
    value, low, high = bounded_mean([1.0, 1.0, 1.0], 0.95, SHARE, num_outcomes=72)
    # By hand: Wilson's lower end of 72 of 72 is 72 / (72 + 1.96 ** 2).
    assert (value, high) == (1.0, 1.0)
    assert low == pytest.approx(72 / (72 + 1.959964**2))


def test_far_from_the_bounds_it_is_students() -> None:
    values = [0.50, 0.51, 0.49, 0.505]
    assert bounded_mean(values, 0.95, SHARE) == pytest.approx(mean_interval(values, 0.95), abs=3e-4)
    wide = Bounds(-1e6, 1e6)
    assert bounded_mean(values, 0.95, wide) == pytest.approx(mean_interval(values, 0.95), abs=1e-6)


def test_other_bounds_scale() -> None:
    values = [0.9, 0.8, 0.95]
    moved = bounded_mean([10 + 5 * value for value in values], 0.95, Bounds(10.0, 15.0))
    assert moved == pytest.approx([10 + 5 * end for end in bounded_mean(values, 0.95, SHARE)])


def test_one_bound_cuts_and_none_leaves() -> None:
    times_s = [1.0, 9.0]
    _, low, high = bounded_mean(times_s, 0.95, NEVER_NEGATIVE)
    assert (low, high) == (0.0, mean_interval(times_s, 0.95)[2])
    assert bounded_mean(times_s, 0.95) == mean_interval(times_s, 0.95)


def test_values_beyond_the_bounds_are_left_to_student() -> None:
    assert bounded_mean([0.5, 1.2], 0.95, SHARE) == mean_interval([0.5, 1.2], 0.95)


def test_wilson_by_hand() -> None:
    # 8 of 10 at 95 %: Wilson 1927; the ends solve (p - 0.8) ** 2 = 1.96 ** 2 p (1 - p) / 10.
    low, high = wilson(0.8, 1 / 10, 1.959964)
    for end in (low, high):
        assert (end - 0.8) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / 10)


def test_differences_are_no_wider_than_values_can_be_apart() -> None:
    assert bounded_difference([0.9, -0.1], 0.95, SHARE) == (0.4, -1.0, 1.0)
    assert bounded_difference([0.9, -0.1], 0.95)[2] > 1


def test_equal_differences_of_shares_are_not_certain() -> None:
    assert bounded_difference([0.0] * 3, 0.95, SHARE) == (0.0, 0.0, 0.0)
    value, low, high = bounded_difference([0.0] * 3, 0.95, SHARE, shares=((1.0, 72), (1.0, 72)))
    imagined = 73 / 74
    reach = 1.959964 * (2 * imagined * (1 - imagined) / 74) ** 0.5
    assert (value, low, high) == pytest.approx((0.0, -reach, reach))


def test_differences_of_shares_are_held() -> None:
    rng = random.Random(3)
    one, other = share_of(24, 0.95, 0.02), share_of(24, 0.90, 0.04)
    held = student = 0
    for _ in range(NUM_SIMULATIONS):
        a, b = [one(rng) for _ in range(3)], [other(rng) for _ in range(3)]
        differences = [y - x for x, y in zip(a, b, strict=True)]
        shares = ((statistics.fmean(a), 72), (statistics.fmean(b), 72))
        _, low, high = bounded_difference(differences, 0.95, SHARE, shares=shares)
        held += low <= -0.05 <= high
        _, low, high = mean_interval(differences, 0.95)
        student += low <= -0.05 <= high
    assert held / NUM_SIMULATIONS >= 0.95
    assert student / NUM_SIMULATIONS < held / NUM_SIMULATIONS
