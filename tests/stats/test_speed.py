"""Speeds by hand."""

import pytest

from foretune.stats.speed import median_step_s, samples_per_s

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
