"""When a curve no longer falls: neither too early nor never, on curves whose truth is known."""

import math
import random
from collections.abc import Sequence

import pytest

from foretune.stats.settling import ALLOWED_ERROR, FEWEST_OF_ONE, LEAST_GAIN, gain, settling

LENGTH = 360
NOISE = 0.02
NUM_CURVES = 120
MOST_WRONG = 10
"""Of 120 curves: a rule that is wrong in 5 of 100 exceeds it in about 3 of 100 such tests."""


def falling(share: float, length: int = LENGTH) -> list[float]:
    """A power law, which gains the same share from third to third wherever it is looked at."""
    power = -math.log1p(-share) / math.log(5 / 3)
    return [(step + 1) ** -power for step in range(length)]


def noisy(curve: Sequence[float], noise: float, chance: random.Random, memory: float = 0.0) -> list[float]:
    """The curve with noise on it, each value of which resembles the one before by `memory`."""
    made, rest = [], chance.gauss(0, noise)
    for value in curve:
        rest = memory * rest + chance.gauss(0, noise * math.sqrt(1 - memory**2))
        made.append(value * (1 + rest))
    return made


def num_stopped(curve: Sequence[float], num_seeds: int = 1, noise: float = NOISE, memory: float = 0.0) -> int:
    chance = random.Random(7)
    return sum(
        settling([noisy(curve, noise, chance, memory) for _ in range(num_seeds)]).at is not None
        for _ in range(NUM_CURVES)
    )


@pytest.mark.parametrize(("num_seeds", "memory"), [(1, 0.0), (1, 0.3), (3, 0.0)])
def test_a_curve_that_still_falls_is_not_called_settled(num_seeds: int, memory: float) -> None:
    """At what just counts, where the rule is wrong most often."""
    assert num_stopped(falling(LEAST_GAIN), num_seeds, memory=memory) <= MOST_WRONG
    assert num_stopped(falling(3 * LEAST_GAIN), num_seeds, memory=memory) == 0


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_a_flat_curve_is_called_settled(num_seeds: int) -> None:
    assert num_stopped([1.0] * LENGTH, num_seeds) >= 0.9 * NUM_CURVES


def test_a_rule_that_only_asks_whether_a_difference_shows_would_stop_early() -> None:
    """The control: noise hides what is still gained, and such a rule takes that for nothing gained."""
    chance = random.Random(7)
    curves = [noisy(falling(3 * LEAST_GAIN), 0.3, chance) for _ in range(NUM_CURVES)]
    found = [gain([curve]) for curve in curves]
    hidden = sum(one is not None and one.low <= 0 <= one.high for one in found)
    assert hidden > 0.5 * NUM_CURVES, "the plain rule would stop here"
    assert sum(settling([curve]).at is not None for curve in curves) <= ALLOWED_ERROR * NUM_CURVES + 4


def test_the_interval_holds_the_gain() -> None:
    chance, held = random.Random(3), 0
    exact = gain([falling(0.05)])
    assert exact is not None
    for _ in range(NUM_CURVES):
        found = gain([noisy(falling(0.05), NOISE, chance)])
        assert found is not None
        held += found.low <= exact.share <= found.high
    assert held >= 0.9 * NUM_CURVES


def test_short_curves_say_nothing_alone_and_something_together() -> None:
    chance = random.Random(1)
    short = [noisy([1.0] * 30, 0.001, chance) for _ in range(3)]
    assert gain(short[:1]) is None
    assert settling(short[:1]).at is None
    together = gain(short)
    assert together is not None
    assert together.answer == "settled"
    assert gain([[1.0] * 5] * 3) is None


def test_a_curve_that_rises_is_distinguished_and_ends_the_training_too() -> None:
    rising = noisy([1 + 0.002 * step for step in range(LENGTH)], 0.01, random.Random(2))
    found = settling([rising])
    assert found.last is not None
    assert found.last.answer == "rising"
    assert found.at is not None


def test_what_is_not_decided_says_how_much_more_would_do() -> None:
    found = gain([noisy([1.0] * FEWEST_OF_ONE, 0.2, random.Random(5))])
    assert found is not None
    assert found.answer == "not decided"
    assert found.num_needed is not None
    assert found.num_needed > FEWEST_OF_ONE


def test_values_that_are_no_numbers_say_nothing() -> None:
    assert gain([[math.nan] * LENGTH]) is None
    assert gain([[0.0] * LENGTH]) is None
