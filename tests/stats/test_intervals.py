"""Typical values by hand; how often the intervals are right is for the proofs."""

import random
import statistics

import pytest

from foretune.stats.intervals import ONE_RUN, mean_interval, num_independent, typical


def noisy(num: int, level: float = 1.0, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [level * draw.gauss(1, 0.01) for _ in range(num)]


def test_one_run_says_that_it_is_one() -> None:
    times = [9.0, *noisy(50)]
    found = typical([times])
    assert found.value == statistics.median(times[1:])
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert (found.num_runs, found.num_values, found.num_dropped) == (1, 50, 1)
    assert found.why_dropped == "warm-up: the first step"
    assert found.warnings == (ONE_RUN,)


def test_repeats_are_the_unit() -> None:
    """Three levels, however many steps each: the interval is that of three values."""
    levels = (1.00, 1.05, 1.10)
    found = typical([[level] * 100 for level in levels])
    assert found.value == pytest.approx(1.05)
    # 4.3027 (Student, 2 degrees of freedom) * 0.05 / sqrt(3)
    assert found.high == pytest.approx(1.05 + 4.3027 * 0.05 / 3**0.5, abs=1e-4)
    assert found.low == pytest.approx(1.05 - 4.3027 * 0.05 / 3**0.5, abs=1e-4)
    assert found.run_values == levels
    assert found.num_dropped == 0
    assert found.why_dropped is None


def test_the_mean_counts_slow_steps_with_their_whole_length() -> None:
    times = [1.0] * 90 + [2.0] * 10
    random.Random(0).shuffle(times)
    assert typical([times], statistic="mean").value == pytest.approx(1.1)
    assert typical([times]).value == 1.0


def test_a_mean_of_rare_long_steps_has_no_interval_in_one_run() -> None:
    times = noisy(100)
    times[50] = 80.0
    found = typical([times], statistic="mean")
    assert found.value is not None
    assert found.low is None
    assert found.high is None
    assert any("rare long steps" in text for text in found.warnings)


def test_a_drifting_run_is_not_summarised() -> None:
    found = typical([[1 + 0.01 * step for step in range(60)]])
    assert found.value is None
    assert found.low is None
    assert found.num_values == 60


def test_a_drifting_run_among_others_counts_and_is_named() -> None:
    runs = [*(noisy(60, seed=seed) for seed in range(4)), [1 + 0.01 * step for step in range(60)]]
    found = typical(runs)
    assert found.value is not None
    assert len(found.run_values) == 5
    assert found.warnings[0].startswith("1 of 5 runs are not steady; the first:")


def test_few_steps_have_a_value_and_no_interval() -> None:
    found = typical([[3.0, 1.0, 1.0]])
    assert (found.value, found.low, found.num_dropped) == (1.0, None, 2)
    assert "too few" in found.warnings[0]


def test_nothing_is_nothing() -> None:
    found = typical([[], []])
    assert found.value is None
    assert found.num_runs == 0
    assert found.warnings == ("there is no value",)


def test_a_run_without_a_step_is_named() -> None:
    found = typical([noisy(20), [], noisy(20, seed=1)])
    assert found.num_runs == 2
    assert "1 run has no value and does not count" in found.warnings


def test_the_mean_of_values_by_hand() -> None:
    mean, low, high = mean_interval([1.0, 2.0, 3.0], 0.95)
    assert mean == 2.0
    assert high - mean == pytest.approx(4.3027 / 3**0.5, abs=1e-4)
    assert mean - low == pytest.approx(high - mean)


def test_neighbours_that_resemble_each_other_are_worth_less() -> None:
    draw = random.Random(0)
    independent = [draw.gauss(0, 1) for _ in range(2000)]
    resembling = [0.0]
    for value in independent:
        resembling.append(0.8 * resembling[-1] + value)
    assert 1200 < num_independent(independent) <= 2000
    # (1 - 0.8) / (1 + 0.8) of 2000 are 222.
    assert 120 < num_independent(resembling) < 330
    assert num_independent([1.0] * 10) == 10


def test_runs_too_short_to_be_asked_are_not_called_unsteady() -> None:
    short = typical([[0.5, 0.5], [0.5, 0.5]])
    assert short.value == pytest.approx(0.5)
    why = "2 values are too few to find the warm-up in (8 are needed): the first was left out"
    assert short.warnings == (f"2 of 2 runs are too short; the first: {why}",)
    rising = [0.1 * (1 + 0.02 * step) for step in range(60)]
    both = typical([[0.5] * 3, rising, [0.1] * 20, [0.1] * 20]).warnings
    assert [text.split(";")[0] for text in both] == ["1 of 4 runs are too short", "1 of 4 runs are not steady"]
