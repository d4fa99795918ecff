"""Speeds by hand."""

import pytest

from foretune.stats.intervals import Estimate
from foretune.stats.speed import median_step_s, rate_of, samples_per_s

# Two slow steps while it warms up, then four, one of them slow.
STEP_TIMES_S = [10.0, 4.0, 1.0, 2.0, 1.0, 4.0]


def test_the_median_leaves_the_warm_up_out() -> None:
    assert median_step_s(STEP_TIMES_S, num_warmup=2) == 1.5
    assert median_step_s(STEP_TIMES_S, num_warmup=0) == 3.0
    assert median_step_s(STEP_TIMES_S[:5], num_warmup=2) == 1.0


def test_samples_over_time_with_slow_steps_at_their_whole_length() -> None:
    # 4 steps of 3 samples in 1 + 2 + 1 + 4 seconds.
    assert samples_per_s(STEP_TIMES_S, 3, num_warmup=2) == 12 / 8
    assert samples_per_s(STEP_TIMES_S, 3, num_warmup=0) == 18 / 22


def test_equal_steps_have_one_speed() -> None:
    assert samples_per_s([0.5] * 10, 4, num_warmup=2) == 8.0
    assert median_step_s([0.5] * 10, num_warmup=2) == 0.5


@pytest.mark.parametrize("step_times_s", [[], [1.0], [1.0, 2.0]])
def test_without_a_warm_step_there_is_no_speed(step_times_s: list[float]) -> None:
    assert median_step_s(step_times_s, num_warmup=2) is None
    assert samples_per_s(step_times_s, 4, num_warmup=2) is None


def test_no_time_is_no_speed() -> None:
    assert samples_per_s([0.0, 0.0, 0.0], 4, num_warmup=0) is None


def _estimate(value: float | None, low: float | None, high: float | None) -> Estimate:
    return Estimate(value, low, high, 0.95, 3, 30, 0, None)


def test_the_longest_time_is_the_lowest_rate() -> None:
    assert rate_of(_estimate(0.5, 0.4, 0.8), 4) == (8.0, 5.0, 10.0)


def test_a_rate_without_an_end_has_none() -> None:
    assert rate_of(_estimate(0.5, None, None), 4) == (8.0, None, None)
    assert rate_of(_estimate(0.5, -0.1, 1.0), 4) == (8.0, 4.0, None), "an interval of times that reaches zero"
    assert rate_of(_estimate(None, None, None), 4) is None
