"""H5: the warm-up is found, not assumed, and a series that never comes to rest is said to be one.

Control: the first two steps left out, whatever they are.
"""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from foretune.stats.steady import find_steady
from tests.conftest import ProofSize
from tests.proofs.planted_series import KINDS, UNRESTS, WARMUPS, Source, never_steady

pytestmark = pytest.mark.proof

_NUM_STEPS = 200
_ALL_KINDS = ("plain", *KINDS)
_ASSUMED = 2


def test_h5_the_warmup_is_found(proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    draw, num = random.Random("h5 warm-up"), proof_size(2000, 320)
    near, near_assumed, false_alarms = Counter[str](), 0, 0
    for number in range(num):
        warmup = WARMUPS[number // len(_ALL_KINDS) % len(WARMUPS)]
        source = Source.drawn(_ALL_KINDS[number % len(_ALL_KINDS)], draw)
        series, truth = source.with_warmup(warmup, _NUM_STEPS, draw)
        found = find_steady(series)
        near[warmup] += abs(found.num_warmup - truth) <= 3
        near_assumed += abs(_ASSUMED - truth) <= 3
        false_alarms += not found.is_steady
    share = near.total() / num
    by_warmup = ", ".join(f"{name} {near[name] / (num / len(WARMUPS)):.0%}" for name in WARMUPS)
    report_figure(
        f"warm-up found within 3 steps in {share:.1%} of {num} series ({by_warmup}); two steps assumed: "
        f"{near_assumed / num:.1%}; steady series called not steady: {false_alarms / num:.1%}"
    )
    assert share >= 0.95
    assert false_alarms <= 0.02 * num
    assert near_assumed / num < 0.7


def test_h5_series_that_never_come_to_rest_are_flagged(
    proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    draw, num = random.Random("h5 never steady"), proof_size(2000, 400)
    flagged = Counter[str]()
    for number in range(num):
        unrest = UNRESTS[number // len(_ALL_KINDS) % len(UNRESTS)]
        source = Source.drawn(_ALL_KINDS[number % len(_ALL_KINDS)], draw)
        found = find_steady(never_steady(source.series(_NUM_STEPS, draw), unrest, draw))
        flagged[unrest] += not found.is_steady
    by_unrest = ", ".join(f"{name} {flagged[name] / (num / len(UNRESTS)):.0%}" for name in UNRESTS)
    report_figure(f"never steady: {flagged.total() / num:.1%} of {num} flagged ({by_unrest})")
    # Nothing that assumes its warm-up can flag any.
    assert flagged.total() >= 0.95 * num
