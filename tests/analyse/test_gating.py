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


def test_long_steps_that_the_median_does_not_see_fail_the_gate() -> None:
    same = measured(1.00, 0.99, 1.01)
    assert judge(same, 0.05, speed=measured(1 / 1.25, 1 / 1.30, 1 / 1.20)).verdict == "slower"
    leaning = judge(same, 0.05, speed=measured(1 / 1.10, 1 / 1.30, 1 / 0.95))
    assert leaning.verdict == "inconclusive"
    assert "all steps together measured +10.0% (-5.0% to +30.0%)" in leaning.reason
    assert leaning.num_more is not None


def test_noise_in_all_steps_alone_keeps_nothing_from_passing() -> None:
    same, noisy = measured(1.00, 0.99, 1.01), measured(1.0, 0.8, 1.25)
    assert judge(same, 0.05, speed=noisy).verdict == "pass"
    assert judge(same, 0.05, speed=noisy, is_strict=True).verdict == "inconclusive"
    assert judge(same, 0.05, speed=measured(1.0, 0.97, 1.03), is_strict=True).verdict == "pass"
    assert judge(measured(1.00, 0.99, 1.01), 0.05, speed=decide([1.0], [1.0])).verdict == "pass"


def test_a_candidate_whose_runs_did_not_finish_does_not_pass() -> None:
    answer = judge(measured(1.00, 0.99, 1.01), 0.05, num_unfinished=2)
    assert answer.exit_code == 3
    assert answer.reason.startswith("2 runs of the candidate did not finish")
    assert judge(measured(1.2, 1.1, 1.3), 0.05, num_unfinished=2).verdict == "slower"
