"""Which is best, if any is."""

import pytest

from foretune.analyse.ranking import rank


def test_a_clear_lead_is_best() -> None:
    found = rank([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9], [5.0, 5.1, 4.9]], higher_is_better=True)
    assert (found.best, found.tied) == (2, (2,))
    assert found.narrowest is not None
    assert found.narrowest.ahead_of == 1
    assert found.narrowest.value == pytest.approx(3.0)
    assert found.narrowest.low is not None
    assert 0 < found.narrowest.low < 3.0


def test_less_may_be_better() -> None:
    assert rank([[1.0, 1.1, 0.9], [5.0, 5.1, 4.9]], higher_is_better=False).best == 0


def test_one_run_each_shows_nothing() -> None:
    found = rank([[1.0], [100.0]], higher_is_better=True)
    assert (found.best, found.leader, found.tied) == (None, 1, (0, 1))


def test_equal_repeats_are_no_proof() -> None:
    """Scores come in steps: three times 0.5 does not mean that there is no spread."""
    assert rank([[0.5, 0.5, 0.5], [0.51, 0.51, 0.51]], higher_is_better=True).best is None
    spread = [[0.5, 0.5, 0.5], [0.6, 0.6, 0.6], [0.1, 0.4, 0.7]]
    assert rank(spread, higher_is_better=True).best is None


def test_what_has_no_value_takes_no_part() -> None:
    assert rank([[], []], higher_is_better=True).leader is None
    alone = rank([[], [1.0, 2.0]], higher_is_better=True)
    assert (alone.best, alone.leader) == (None, 1)
    assert rank([[float("nan")], [1.0, 1.1, 1.2], [9.0, 9.1, 9.2]], higher_is_better=True).tied == (2,)


def test_two_runs_never_show_a_best() -> None:
    """Two runs that happen to agree look like no spread at all."""
    close = rank([[1.0, 1.0001], [9.0, 9.0001]], higher_is_better=True)
    assert (close.best, close.leader, close.tied) == (None, 1, (0, 1))
    one_more = rank([[1.0, 1.0001, 1.0002], [9.0, 9.0001, 9.0002]], higher_is_better=True)
    assert one_more.best == 1


def test_more_rivals_ask_for_more() -> None:
    """Of a leader that is not best, more are kept beside it the more there are."""
    near, far = [2.9, 3.3, 2.6], [1.9, 2.3, 1.6]
    few = rank([[3.0, 3.4, 2.7], near, far], higher_is_better=True)
    assert few.best is None
    assert few.tied == (0, 1)
    many = rank([[3.0, 3.4, 2.7], near, *([far] * 30)], higher_is_better=True)
    assert set(many.tied) > {0, 1}
