"""H6: no value is left out silently: n, what was dropped and why are part of every answer.

Control: a summary that drops outliers without a word fails the same account.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from foretune.stats.deciding import decide
from foretune.stats.intervals import Estimate, typical
from foretune.stats.steady import find_steady
from tests.conftest import ProofSize
from tests.proofs.planted_series import KINDS, WARMUPS, Source

pytestmark = pytest.mark.proof


def account(runs: Sequence[Sequence[float]], found: Estimate) -> None:
    """Every value counts or was dropped for a reason; what was dropped is the warm-up at the head, nothing else."""
    total = sum(map(len, runs))
    assert found.num_runs == len(runs)
    assert found.num_values + found.num_dropped == total, "values are missing from the account"
    assert (found.why_dropped is not None) == (found.num_dropped > 0), "a drop without a reason"
    assert found.num_dropped == sum(find_steady(run).num_warmup for run in runs), "more than the warm-up was dropped"
    assert len(found.run_values) == len(runs)
    for run, value in zip(runs, found.run_values, strict=True):
        assert value == statistics.median(run[find_steady(run).num_warmup :]), "a value inside was dropped"


def silent_summary(runs: Sequence[Sequence[float]]) -> Estimate:
    """What many programs do: values beyond two deviations are gone, and nobody hears of it."""
    kept = []
    for run in runs:
        mean, deviation = statistics.fmean(run), statistics.stdev(run)
        kept.append([value for value in run if abs(value - mean) <= 2 * deviation])
    found = typical(runs)
    values = tuple(statistics.median(run) for run in kept)
    return replace(found, num_values=sum(map(len, kept)), num_dropped=0, why_dropped=None, run_values=values)


def drawn_runs(draw: random.Random) -> list[list[float]]:
    source = Source.drawn(draw.choice(KINDS), draw)
    num_runs, num = draw.choice((1, 2, 5)), draw.randrange(8, 120)
    runs = [source.with_warmup(draw.choice(WARMUPS[:2]), num, draw)[0] for _ in range(num_runs)]
    runs[0][num // 2] *= 100
    return runs


def test_h6_every_value_is_accounted_for(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    draw, num = random.Random("h6"), proof_size(1000, 100)
    refused = 0
    for _ in range(num):
        runs = drawn_runs(draw)
        account(runs, typical(runs))
        try:
            account(runs, silent_summary(runs))
        except AssertionError:
            refused += 1
    report_figure(f"{num} of {num} accounts complete; of a summary that drops silently, {refused} of {num} are refused")
    assert refused == num


def test_h6_what_cannot_be_compared_is_named() -> None:
    found = decide([1.0, 1.1, float("nan")], [1.0, 0.0, 1.2])
    assert found.num_a == found.num_b == 2
    assert "a and b have 1 of 3 values that are no positive numbers and do not count" in found.warnings
