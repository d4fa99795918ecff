"""H7: a machine that drifts by 20 % while two things are compared.

Measured in turns the drift meets both alike. Control: all of a, then all of b.
"""

import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from foretune.stats.deciding import Decision, decide
from foretune.stats.turns import Side, turns
from tests.conftest import ProofSize

pytestmark = pytest.mark.proof

_NUM_REPEATS = 10
_DRIFT = 0.2


def drifting_session(order: Sequence[Side], ratio: float, draw: random.Random) -> dict[Side, list[float]]:
    """Step times of one session, in the order they were measured, on a machine that gets slower all the time."""
    measured: dict[Side, list[float]] = {"a": [], "b": []}
    for number, side in enumerate(order):
        slower = 1 + _DRIFT * number / (len(order) - 1)
        measured[side].append((ratio if side == "b" else 1.0) * slower * draw.gauss(1, 0.01))
    return measured


def decided(order: Sequence[Side], ratio: float, draw: random.Random, *, is_paired: bool) -> Decision:
    measured = drifting_session(order, ratio, draw)
    return decide(measured["a"], measured["b"], is_paired=is_paired)


@pytest.mark.parametrize("ratio", [1.0, 1.05])
def test_h7_turns_take_the_drift_out(ratio: float, proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    num = proof_size(1000, 100)
    first: list[Side] = ["a"]
    second: list[Side] = ["b"]
    orders: dict[str, list[Side]] = {
        "a b b a": list(turns(_NUM_REPEATS)),
        "a b a b": [*first, *second] * _NUM_REPEATS,
        "a a b b": first * _NUM_REPEATS + second * _NUM_REPEATS,
    }
    biases, right = {}, {}
    for name, order in orders.items():
        draw = random.Random(f"h7 {ratio} {name}")
        found = [decided(order, ratio, draw, is_paired=name != "a a b b") for _ in range(num)]
        biases[name] = statistics.fmean(one.ratio / ratio - 1 for one in found if one.ratio is not None)
        right[name] = sum((one.answer == "b is higher") == (ratio > 1) for one in found) / num
    report_figure(
        f"true ratio {ratio}: bias "
        + ", ".join(f"{name} {biases[name]:+.1%} (right in {right[name]:.0%})" for name in orders)
    )
    assert abs(biases["a b b a"]) < 0.02
    assert abs(biases["a b a b"]) < 0.02
    assert right["a b b a"] >= 0.95
    # The control sees the drift as a difference.
    assert biases["a a b b"] >= 0.08
    assert ratio > 1 or right["a a b b"] < 0.5


def test_h7_neither_side_always_comes_second() -> None:
    order = list(turns(4))
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]
    places = {side: statistics.fmean(i for i, one in enumerate(order) if one == side) for side in ("a", "b")}
    assert places["a"] == places["b"]
