"""Answers by hand."""

import math

import pytest

from foretune.stats.deciding import decide, more_repeats

STEADY = (1.00, 1.01, 0.99, 1.00, 1.005, 0.995)


def test_a_clear_difference_has_a_winner() -> None:
    found = decide(STEADY, [1.1 * value for value in STEADY])
    assert found.answer == "b is higher"
    assert found.ratio == pytest.approx(1.1)
    assert found.low is not None
    assert found.low > 1.05
    assert decide([1.1 * value for value in STEADY], STEADY).answer == "a is higher"


def test_exchanged_sides_mirror_the_interval() -> None:
    one, other = decide(STEADY, [1.0, 1.2, 1.1]), decide([1.0, 1.2, 1.1], STEADY)
    assert one.ratio is not None
    assert one.low is not None
    assert other.ratio == pytest.approx(1 / one.ratio)
    assert other.high == pytest.approx(1 / one.low)


def test_no_difference_is_said_only_where_one_would_have_shown() -> None:
    assert decide(STEADY, STEADY).answer == "no difference shown"
    wide = (0.8, 1.2, 1.0, 0.9, 1.1)
    found = decide(wide, wide)
    assert found.answer == "inconclusive"
    assert found.num_more is not None
    assert found.num_more > 50
    assert decide(wide, wide, smallest_difference=0.5).answer == "no difference shown"


def test_an_interval_that_is_narrow_on_one_side_only_is_inconclusive() -> None:
    """It ends close above one, and reaches far below: b may well be lower by more than matters."""
    a = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    b = [math.exp(-0.04 + reach) for reach in (0.05, -0.05, 0.04, -0.04, 0.05, -0.05)]
    for found in (decide(a, b, smallest_difference=0.05), decide(b, a, smallest_difference=0.05)):
        assert found.low is not None
        assert found.high is not None
        assert found.low < 1 < found.high
        assert (found.high > 1.05) != (found.low < 1 / 1.05)
        assert found.answer == "inconclusive"


def test_one_run_has_a_ratio_and_no_interval() -> None:
    found = decide([1.0], [2.0, 2.1])
    assert found.ratio == pytest.approx(math.sqrt(2.0 * 2.1))
    assert found.low is None
    assert found.answer == "inconclusive"
    assert found.warnings == (
        "a has one run only: how runs differ is not known",
        "b has 2 runs only: the interval is wide for lack of them",
    )


def test_warnings_that_both_sides_share_are_said_once() -> None:
    assert decide([1.0], [2.0]).warnings == ("a and b have one run only: how runs differ is not known",)


def test_nothing_to_compare_is_inconclusive() -> None:
    found = decide([], [1.0])
    assert (found.ratio, found.answer) == (None, "inconclusive")
    assert "a has no value" in found.warnings


def test_pairs_take_out_what_both_share() -> None:
    """A machine that doubles its time between the first pair and the last."""
    a = [1.0, 1.3, 1.6, 2.0]
    b = [1.05 * value * factor for value, factor in zip(a, (1.001, 0.999, 1.0, 1.002), strict=True)]
    assert decide(a, b).answer == "inconclusive"
    assert decide(a, b, is_paired=True).answer == "b is higher"


def test_values_without_spread_have_an_interval_without_width() -> None:
    found = decide([2.0] * 3, [2.5] * 3)
    assert found.low == pytest.approx(1.25)
    assert found.high == pytest.approx(1.25)
    assert found.answer == "b is higher"


def test_repeats_that_are_asked_for_are_enough_and_not_one_too_many() -> None:
    """The interval falls with the root of the number: a fifth of the width takes about 25 times as many."""
    error = 0.05
    more = more_repeats(error, 10, 0.02, 0.95)
    assert 200 < 10 + more < 260
    assert more_repeats(1e-9, 3, 0.02, 0.95) == 1
