"""Where a series comes to rest, on series by hand; how often it is right is for the proofs."""

import random
import time

import pytest

from foretune.stats.steady import FEWEST_STEPS, find_steady


def noisy(*levels: tuple[int, float], noise: float = 0.01) -> list[float]:
    draw = random.Random(0)
    return [level * draw.gauss(1, noise) for num, level in levels for _ in range(num)]


def test_constant_times_have_no_warm_up() -> None:
    found = find_steady([0.5] * 30)
    assert found.is_steady
    assert found.num_warmup == 0
    assert found.why == "no warm-up was found"


def test_the_first_step_alone() -> None:
    found = find_steady([30.0, *noisy((40, 1.0))])
    assert (found.num_warmup, found.is_steady) == (1, True)
    assert found.why.startswith("1 warm-up step: 30")


def test_slow_steps_then_steady() -> None:
    found = find_steady(noisy((12, 1.5), (60, 1.0)))
    assert (found.num_warmup, found.is_steady) == (12, True)
    assert found.why == "12 warm-up steps: 1.50 times as long as those after"


def test_a_warm_up_may_be_faster_than_what_follows() -> None:
    assert find_steady(noisy((12, 0.8), (60, 1.0))).num_warmup == 12


def test_a_spike_is_no_warm_up_and_no_unrest() -> None:
    times = noisy((60, 1.0))
    times[20] *= 50
    times[41] *= 20
    found = find_steady(times)
    assert (found.num_warmup, found.is_steady) == (0, True)


def test_a_drift_is_told_with_its_size() -> None:
    found = find_steady([value * (1 + 0.3 * step / 100) for step, value in enumerate(noisy((100, 1.0)))])
    assert not found.is_steady
    assert "never steady" in found.why or "drifting" in found.why


def test_a_late_change_is_told_with_its_place() -> None:
    found = find_steady(noisy((70, 1.0), (30, 1.3)))
    assert not found.is_steady
    assert found.num_warmup == 0
    assert found.last_change == 70
    assert "step 71 of 100" in found.why


def test_changes_too_small_to_matter_are_none() -> None:
    found = find_steady(noisy((50, 1.0), (50, 1.01), noise=0.001))
    assert (found.num_warmup, found.is_steady) == (0, True)


@pytest.mark.parametrize("num", range(FEWEST_STEPS))
def test_too_few_steps_are_said_to_be_too_few(num: int) -> None:
    found = find_steady([1.0] * num)
    assert not found.is_steady
    assert found.num_warmup == min(2, max(num - 1, 0))
    assert "too few" in found.why


def test_there_is_always_a_step_after_the_warm_up() -> None:
    draw = random.Random(1)
    for _ in range(300):
        times = [draw.lognormvariate(0, draw.uniform(0, 3)) for _ in range(draw.randrange(1, 40))]
        assert 0 <= find_steady(times).num_warmup < len(times)


def test_long_series_take_no_time() -> None:
    times = noisy((300, 2.0), (20_000, 1.0))
    started_s = time.process_time()
    assert find_steady(times).num_warmup == 300
    assert time.process_time() - started_s < 2


def test_a_compile_at_the_head_of_a_short_series_is_a_warmup() -> None:
    """It is drawn in as a spike, and must not pass for one of the others then."""
    found = find_steady([44.95, 0.0126, 0.0119, 0.0099, 0.0097, 0.0094, 0.0094, 0.0098, 0.0095, 0.0099, 0.0116, 0.0096])
    assert found.num_warmup in (1, 2, 3)
    assert found.is_steady
