"""H1: a thing compared with itself has no winner.

Comparisons are resampled from trainings in fresh processes that `python -m tests.proofs.h1_recording` recorded, quiet
and beside processes that take the cores; at full size some are made live. Control: one run each, and an interval over
its steps.
"""

import json
import math
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from foretune.stats.deciding import decide
from foretune.stats.intervals import typical
from tests.conftest import ProofSize
from tests.proofs.h1_runs import CONDITIONS, recorded_runs

pytestmark = pytest.mark.proof

_NUM_COMPARISONS = 400
_NUM_REPEATS = 10
_FEWEST_RUNS = 60


def upper_bound(num_found: int, num: int, confidence: float = 0.95) -> float:
    """The largest rate at which so few would be found in one of twenty cases (Clopper and Pearson)."""
    low, high = num_found / num, 1.0
    while high - low > 1e-6:
        rate = (low + high) / 2
        at_most = sum(math.comb(num, k) * rate**k * (1 - rate) ** (num - k) for k in range(num_found + 1))
        low, high = (rate, high) if at_most > 1 - confidence else (low, rate)
    return high


def naive_winner(steps_a: Sequence[float], steps_b: Sequence[float]) -> bool:
    """Whether one run each, taken for as many independent values as it has steps, shows a difference."""
    error = math.sqrt(sum(statistics.variance(steps) / len(steps) for steps in (steps_a, steps_b)))
    return abs(statistics.fmean(steps_a) - statistics.fmean(steps_b)) > 1.96 * error


def test_h1_recorded_runs_have_no_false_winner(report_figure: Callable[[str], None]) -> None:
    draw = random.Random("h1")
    num_runs = winners = naive_winners = 0
    answers = []
    for condition in CONDITIONS:
        runs = recorded_runs(condition)
        values = typical(runs).run_values
        num_runs += len(runs)
        wrong = 0
        for _ in range(_NUM_COMPARISONS // len(CONDITIONS)):
            chosen = draw.sample(range(len(runs)), 2 * _NUM_REPEATS)
            sides = [values[i] for i in chosen]
            found = decide(sides[:_NUM_REPEATS], sides[_NUM_REPEATS:])
            wrong += found.answer in {"a is higher", "b is higher"}
            naive_winners += naive_winner(runs[chosen[0]][2:], runs[chosen[1]][2:])
        spread = statistics.stdev(map(math.log, values))
        answers.append(f"{condition}: {wrong} ({len(runs)} runs, which differ by {spread:.1%})")
        winners += wrong
    bound = upper_bound(winners, _NUM_COMPARISONS)
    report_figure(
        f"{winners} false winners in {_NUM_COMPARISONS} comparisons ({'; '.join(answers)}), at most {bound:.1%}; "
        f"naive: {naive_winners / _NUM_COMPARISONS:.0%}"
    )
    assert num_runs >= _FEWEST_RUNS
    assert winners <= 0.05 * _NUM_COMPARISONS
    assert bound <= 0.08
    assert naive_winners > 0.3 * _NUM_COMPARISONS


@pytest.mark.slow
def test_h1_live_runs_have_no_false_winner(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    num = proof_size(20, 0)
    if not num:
        pytest.skip("minutes of training, and too few comparisons to judge below full size: FORETUNE_PROOFS=full")
    command = [sys.executable, "-m", "tests.proofs.h1_recording", "--live", str(num)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answers = []
    for line in output.splitlines():
        compared = json.loads(line)
        a, b = (typical(compared[side]).run_values for side in ("a", "b"))
        answers.append(decide(a, b, is_paired=True).answer)
    winners = sum(answer in {"a is higher", "b is higher"} for answer in answers)
    report_figure(f"live: {winners} false winners in {len(answers)} comparisons: {dict(Counter(answers))}")
    assert len(answers) == num
    assert winners <= 0.05 * num


def test_h1_the_bound_is_that_of_the_books() -> None:
    """None of 100 leaves room for 3 %: the rule of three."""
    assert upper_bound(0, 100) == pytest.approx(0.0295, abs=1e-4)
    assert upper_bound(5, 100) == pytest.approx(0.1023, abs=1e-4)
