"""H15: of twenty configurations that are alike, a best is named in at most 5 of 100 reports.

Sets are simulated (values that are normal, have heavy tails, spread unequally, or come in steps) and resampled from
recorded trainings. All criteria of a recommendation are asked: none of them may name a winner on its own.
Control: the highest mean, which always names one.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from foretune.analyse.groups import Configuration
from foretune.analyse.ranking import rank
from foretune.analyse.recommending import recommend
from foretune.analyse.run_data import RunData
from foretune.analyse.run_numbers import MEMORY, TIME, Measure
from foretune.stats.intervals import typical
from tests.conftest import ProofSize
from tests.proofs.h1_runs import CONDITIONS, recorded_runs
from tests.proofs.test_h1_false_winners import upper_bound

pytestmark = pytest.mark.proof

_NUM_CONFIGURATIONS = 20
Draw = Callable[[random.Random, int], float]


class _Run:
    """As much of a run as a recommendation looks at."""

    kind = "bench"
    has_finished = True
    is_bench = True
    """A bench is not asked how many steps it made."""
    environment: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, run_id: str, numbers: dict[str, float]) -> None:
        self.run_id, self.numbers = run_id, numbers


def _measure(name: str, *, higher_is_better: bool) -> Measure:
    return Measure(name, "", higher_is_better, "events.jsonl", lambda run: cast(_Run, run).numbers[name])


_MEASURES = (
    _measure("caption accuracy", higher_is_better=True),
    _measure(TIME, higher_is_better=False),
    _measure(MEMORY, higher_is_better=False),
)


def _configurations(draw: random.Random, value: Draw, num_runs: int) -> list[Configuration]:
    made = []
    for number in range(_NUM_CONFIGURATIONS):
        runs = [
            _Run(f"{number}-{repeat}", {measure.name: value(draw, number) for measure in _MEASURES})
            for repeat in range(num_runs)
        ]
        made.append(Configuration(str(number), f"configuration {number}", cast(tuple[RunData, ...], tuple(runs)), {}))
    return made


def _normal(draw: random.Random, number: int) -> float:
    return draw.gauss(10, 1)


def _heavy(draw: random.Random, number: int) -> float:
    return draw.lognormvariate(0, 0.5)


def _unequal(draw: random.Random, number: int) -> float:
    return draw.gauss(10, 0.2 + number / 5)


def _in_steps(draw: random.Random, number: int) -> float:
    """Scores that can take few values: some repeats are equal by chance."""
    return round(draw.gauss(10, 1))


@pytest.mark.parametrize("num_runs", [3, 5])
@pytest.mark.parametrize("value", [_normal, _heavy, _unequal, _in_steps], ids=["normal", "heavy", "unequal", "steps"])
def test_h15_like_configurations_have_no_best(
    value: Draw, num_runs: int, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num = proof_size(400, 60)
    draw = random.Random(f"h15 {value.__name__} {num_runs}")
    wrong = sum(recommend(_configurations(draw, value, num_runs), _MEASURES).is_best_shown for _ in range(num))
    report_figure(
        f"{value.__name__.strip('_')}, {num_runs} runs of each of {_NUM_CONFIGURATIONS}: a best in {wrong} of {num} "
        f"(at most {upper_bound(wrong, num):.1%}); the highest mean: {num} of {num}"
    )
    assert wrong <= 0.05 * num


def test_h15_recorded_runs_have_no_best(report_figure: Callable[[str], None], proof_size: ProofSize) -> None:
    """Twenty sets drawn from the same recorded trainings, quiet and beside processes that take the cores."""
    num = proof_size(400, 100)
    draw = random.Random("h15 recorded")
    wrong = by_mean = 0
    for condition in CONDITIONS:
        values = typical(recorded_runs(condition)).run_values
        for _ in range(num // len(CONDITIONS)):
            groups = [draw.choices(values, k=4) for _ in range(_NUM_CONFIGURATIONS)]
            wrong += rank(groups, higher_is_better=False).best is not None
            by_mean += _highest_mean(groups) is not None
    report_figure(f"recorded: a best in {wrong} of {num} sets of 20; by the mean alone in {by_mean}")
    assert wrong <= 0.05 * num
    assert by_mean == num, "control: the mean alone names one each time"


@pytest.mark.parametrize("num_configurations", [2, 3, 5])
def test_h15_few_have_no_best_either(
    num_configurations: int, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    """Two are the hardest case: with more, the leader is followed more closely."""
    num = proof_size(2000, 200)
    draw = random.Random(f"h15 few {num_configurations}")
    wrong = 0
    for _ in range(num):
        groups = [[draw.gauss(10, 1) for _ in range(3)] for _ in range(num_configurations)]
        wrong += rank(groups, higher_is_better=True).best is not None
    report_figure(f"{num_configurations} like ones, 3 runs of each: a best in {wrong / num:.1%} of {num}")
    # The rate is at most 5 %; what is counted scatters around it.
    assert wrong <= 0.05 * num + 3 * (0.05 * 0.95 * num) ** 0.5


def test_h15_a_real_best_is_found(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    """Never to name one would pass the proofs above: a lead of five spreads is found with three runs of four."""
    num = proof_size(400, 60)
    draw = random.Random("h15 power")
    found = 0
    for _ in range(num):
        groups = [[draw.gauss(15 if number == 2 else 10, 1) for _ in range(3)] for number in range(4)]
        found += rank(groups, higher_is_better=True).best == 2
    report_figure(f"a lead of five spreads, 3 runs of each of 4: found in {found / num:.0%}")
    assert found >= 0.8 * num


def _highest_mean(groups: Sequence[Sequence[float]]) -> int | None:
    return min(range(len(groups)), key=lambda number: statistics.fmean(groups[number]))
