"""H2: a slowdown that is there is found, or said to be an open question; never is it called no difference.

Slowdowns are planted into synthetic processes that differ by 3 %, and into recorded trainings with as many repeats as
the instrument itself asks for.
"""

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from foretune.stats.deciding import DECIDING_CONFIDENCE, decide, more_repeats
from foretune.stats.intervals import typical
from tests.conftest import ProofSize
from tests.proofs.h1_runs import CONDITIONS, Condition, recorded_runs
from tests.proofs.planted_series import KINDS, Source, repeated

pytestmark = pytest.mark.proof

_NUM_REPEATS = 10
_STEPS_OF_A_REPEAT = 50
_LEAST_FOUND = {0.10: 0.95, 0.05: 0.80}


def judge(answers: Counter[str], slowdown: float) -> None:
    """The figures that must hold; an answer other than these two is a wrong one."""
    assert answers["b is higher"] >= _LEAST_FOUND[slowdown] * answers.total()
    assert answers["no difference shown"] == 0, "a slowdown was called no difference"
    assert answers["a is higher"] == 0, "a slowdown was called a gain"


@pytest.mark.parametrize("slowdown", _LEAST_FOUND)
def test_h2_planted_slowdowns_are_found(
    slowdown: float, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    draw, num = random.Random(f"h2 {slowdown}"), proof_size(1000, 60)
    answers = Counter[str]()
    for number in range(num):
        source = Source.drawn(KINDS[number % len(KINDS)], draw)
        a, b = (repeated(source, _NUM_REPEATS, _STEPS_OF_A_REPEAT, draw) for _ in range(2))
        slower = [[value * (1 + slowdown) for value in run] for run in b]
        answers[decide(typical(a).run_values, typical(slower).run_values).answer] += 1
    report_figure(f"{slowdown:.0%} planted, {_NUM_REPEATS} processes each: {dict(answers)}")
    judge(answers, slowdown)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("slowdown", _LEAST_FOUND)
def test_h2_slowdowns_of_recorded_runs_are_found(
    slowdown: float, condition: Condition, report_figure: Callable[[str], None]
) -> None:
    draw = random.Random(f"h2 {slowdown} {condition}")
    values = typical(recorded_runs(condition)).run_values
    num_repeats = repeats_for(values, slowdown)
    answers = Counter[str]()
    for _ in range(200):
        a, b = draw.choices(values, k=num_repeats), draw.choices(values, k=num_repeats)
        answers[decide(a, [value * (1 + slowdown) for value in b]).answer] += 1
    report_figure(f"{slowdown:.0%} planted, {condition}, {num_repeats} processes each: {dict(answers)}")
    judge(answers, slowdown)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_h2_too_few_repeats_leave_the_question_open(condition: Condition, report_figure: Callable[[str], None]) -> None:
    draw = random.Random(f"h2 few {condition}")
    values = typical(recorded_runs(condition)).run_values
    answers = Counter[str]()
    for _ in range(200):
        sides = draw.sample(values, 6)
        answers[decide(sides[:3], [value * 1.05 for value in sides[3:]]).answer] += 1
    report_figure(f"5% planted, {condition}, 3 processes each: {dict(answers)}")
    assert answers["inconclusive"] > 0
    assert answers["no difference shown"] == 0


def test_h2_a_verdict_that_says_equal_is_caught() -> None:
    """The control: an instrument that calls everything without proof equal fails the judge."""
    draw = random.Random("h2 control")
    answers = Counter[str]()
    for _ in range(200):
        a, b = ([draw.gauss(1, 0.05) for _ in range(5)] for _ in range(2))
        found = decide(a, [value * 1.05 for value in b])
        answers["no difference shown" if found.answer == "inconclusive" else found.answer] += 1
    with pytest.raises(AssertionError):
        judge(answers, 0.05)


def repeats_for(values: Sequence[float], slowdown: float) -> int:
    """As many as bring the half width of the interval to two fifths of the slowdown."""
    spread = statistics.stdev(map(math.log, values))
    return 2 + more_repeats(spread, 2, 0.4 * math.log1p(slowdown), DECIDING_CONFIDENCE)
