"""The gate's verdicts on intervals by hand."""

import pytest

from foretune.analyse.gating import judge
from foretune.stats.deciding import Decision, decide


def measured(ratio: float, low: float, high: float) -> Decision:
    return Decision(ratio, low, high, 0.97, "inconclusive", 5, 5, None)


@pytest.mark.parametrize(
    ("interval", "verdict", "strict_verdict"),
    [
        ((1.00, 0.98, 1.02), "pass", "pass"),
        ((0.80, 0.75, 0.85), "pass", "pass"),
        ((1.10, 1.06, 1.14), "slower", "slower"),
        ((1.03, 0.99, 1.07), "pass", "inconclusive"),
        ((1.03, 0.90, 1.20), "inconclusive", "inconclusive"),
        ((1.07, 1.04, 1.10), "inconclusive", "inconclusive"),
    ],
)
def test_verdicts(interval: tuple[float, float, float], verdict: str, strict_verdict: str) -> None:
    assert judge(measured(*interval), 0.05).verdict == verdict
    assert judge(measured(*interval), 0.05, is_strict=True).verdict == strict_verdict


def test_exit_codes_tell_slower_and_inconclusive_apart() -> None:
    codes = [judge(measured(*i), 0.05).exit_code for i in ((1.0, 0.98, 1.02), (1.1, 1.06, 1.14), (1.0, 0.8, 1.25))]
    assert codes == [0, 1, 3]


def test_an_open_question_says_how_many_more_runs_would_settle_it() -> None:
    wide = judge(measured(1.0, 0.90, 1.11), 0.05)
    wider = judge(measured(1.0, 0.80, 1.25), 0.05)
    assert wide.num_more is not None
    assert wider.num_more is not None
    assert 5 < wide.num_more < wider.num_more
    assert "measured +0.0% (-10.0% to +11.0%), allowed +5.0%" in wide.reason


def test_one_run_each_is_inconclusive_and_says_why() -> None:
    answer = judge(decide([1.0], [2.0]), 0.05)
    assert answer.verdict == "inconclusive"
    assert "one run only" in answer.reason
    assert answer.num_more is None
