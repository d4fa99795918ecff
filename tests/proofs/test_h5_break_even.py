"""H5, the part of compilation: its time is measured apart from the steps, with the step from which on it has paid."""

import random
from collections.abc import Callable

import pytest

from foretune.stats.break_even import BreakEven, break_even, start_s
from tests.conftest import ProofSize

pytestmark = pytest.mark.proof

_NUM_STEPS, _NUM_REPEATS = 50, 5
_COVERED, _NEAR = 0.9, 0.25


def planted(rng: random.Random, step_s: float, compile_s: float) -> list[list[float]]:
    """Repeats of a run whose first steps also compile: processes differ by 1 %, steps by 2 %."""
    runs = []
    for _ in range(_NUM_REPEATS):
        own_s = step_s * rng.gauss(1, 0.01)
        times_s = [own_s * rng.gauss(1, 0.02) for _ in range(_NUM_STEPS)]
        num_compiling = rng.choice((1, 2))
        for step in range(num_compiling):
            times_s[step] += compile_s / num_compiling
        runs.append(times_s)
    return runs


def naive(plain: list[list[float]], started: list[list[float]]) -> bool:
    """The control: whether compiled is called faster by the mean of all steps, the compiling ones among them."""
    return sum(map(sum, started)) < sum(map(sum, plain))


def by_adding_up(plain_s: float, started_s: float, compile_s: float) -> int:
    """The first step after which the compiled way has taken no longer, counted step by step."""
    step, plain_sum_s, started_sum_s = 0, 0.0, compile_s
    while step == 0 or started_sum_s > plain_sum_s:
        step, plain_sum_s, started_sum_s = step + 1, plain_sum_s + plain_s, started_sum_s + started_s
    return step


def test_h5_compile_time_and_break_even(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    num_cases, rng = proof_size(400, 60), random.Random(5)
    covered = near = fooled = 0
    worst_compile = 0.0
    for _ in range(num_cases):
        plain_s, gain, compile_s = rng.uniform(0.02, 1), rng.uniform(0.1, 0.5), rng.uniform(20, 90)
        started_s = plain_s * (1 - gain)
        plain, started = planted(rng, plain_s, 0.0), planted(rng, started_s, compile_s)
        found, truth = break_even(plain, started), by_adding_up(plain_s, started_s, compile_s)
        assert found.step is not None, found
        assert found.low is not None
        worst_compile = max(worst_compile, abs(found.start_s / compile_s - 1))
        near += abs(found.step / truth - 1) <= _NEAR
        covered += found.low <= truth and (found.high is None or truth <= found.high)
        fooled += not naive(plain, started)
    assert worst_compile <= 0.05
    assert covered >= _COVERED * num_cases
    assert near >= _COVERED * num_cases
    assert fooled >= 0.8 * num_cases, "the control should call the compiled way slower"
    report_figure(
        f"{num_cases} planted: compile time within {worst_compile:.1%}, break-even in the interval in "
        f"{covered / num_cases:.0%}, within {_NEAR:.0%} in {near / num_cases:.0%}; "
        f"control wrong in {fooled / num_cases:.0%}"
    )


def test_h5_never_pays_where_steps_are_not_faster(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    num_cases, rng, wrong = proof_size(400, 60), random.Random(6), 0
    for _ in range(num_cases):
        step_s = rng.uniform(0.02, 1)
        found = break_even(planted(rng, step_s, 0.0), planted(rng, step_s * rng.choice((1.0, 1.1)), 30.0))
        wrong += found.step is not None
    assert wrong <= 0.05 * num_cases
    report_figure(f"{num_cases} where compiling does not help: a break-even claimed in {wrong / num_cases:.1%}")


def test_h5_never_is_said_only_where_it_is_shown(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    """Steps that are faster by less than processes differ: in half of all cases they look slower."""
    num_cases, rng, wrong, slower = proof_size(400, 60), random.Random(7), 0, 0
    for _ in range(num_cases):
        step_s = rng.uniform(0.02, 1)
        found = break_even(planted(rng, step_s, 0.0), planted(rng, step_s * 0.999, 30.0))
        assert found.plain.value is not None
        assert found.started.value is not None
        slower += found.started.value >= found.plain.value
        wrong += found.why.startswith("never")
    assert slower >= 0.25 * num_cases, "the means alone would say never"
    assert wrong <= 0.05 * num_cases
    report_figure(f"{num_cases} a little faster: never claimed in {wrong / num_cases:.1%}, by the means in {slower}")


def test_start_is_what_goes_beyond_steady_steps() -> None:
    assert start_s([5.5, *[0.5] * 30]) == pytest.approx(5.0)
    assert start_s([0.5] * 30) == pytest.approx(0.0)


def test_arithmetic_by_hand() -> None:
    found: BreakEven = break_even([[0.2] * 20] * 3, [[10.1, *[0.1] * 19]] * 3)
    # 10 s more at the start, 0.1 s saved by each step.
    assert found.start_s == pytest.approx(10.0)
    assert found.step == pytest.approx(100, abs=1)
    assert by_adding_up(0.2, 0.1, 10.0) == pytest.approx(100, abs=1)
