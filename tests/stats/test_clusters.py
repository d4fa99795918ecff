"""Intervals over clusters: they cover the truth as often as they say, where seeds of one prompt resemble each other."""

import math
import random
import statistics

import pytest

from foretune.stats.clusters import (
    Clustered,
    clustered_mean,
    clustered_share,
    direction,
    paired_difference,
    shared_confidence,
)
from foretune.stats.student import student_quantile

NUM_SIMULATIONS = 300
# Of 300 intervals of 95 %, 274 or more hold the truth in all but 1 of 100 cases.
FEWEST, MOST = 0.915, 0.995

Group = tuple[float, ...]


def prompts_of_normals(rng: random.Random, num: int, num_seeds: int, mean: float) -> list[Group]:
    """Prompts differ by 1, seeds of a prompt by 0.5."""
    groups = []
    for _ in range(num):
        centre = rng.gauss(mean, 1)
        groups.append(tuple(rng.gauss(centre, 0.5) for _ in range(num_seeds)))
    return groups


def prompts_of_shares(rng: random.Random, num: int, num_seeds: int, share: float) -> list[Group]:
    """Prompts are easy or hard: the chance of success has a beta distribution with this mean."""
    groups = []
    for _ in range(num):
        chance = rng.betavariate(2 * share, 2 * (1 - share))
        groups.append(tuple(float(rng.random() < chance) for _ in range(num_seeds)))
    return groups


def covered(found: Clustered, truth: float) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


def test_a_mean_by_hand() -> None:
    found = clustered_mean([(1.0, 3.0), (4.0,), (6.0, 6.0, 6.0)], 0.95)
    assert found.value == 4.0
    reach = student_quantile(0.975, 2) * 2 / math.sqrt(3)
    assert found.low == pytest.approx(4 - reach)
    assert found.high == pytest.approx(4 + reach)
    assert found.num_clusters == 3


@pytest.mark.parametrize("estimate", [clustered_mean, clustered_share])
def test_one_cluster_has_no_interval_however_many_seeds(estimate: object) -> None:
    found = estimate([(1.0, 0.0, 1.0, 1.0)], 0.95)  # type: ignore[operator]
    assert (found.value, found.low, found.high) == (0.75, None, None)


def test_the_mean_covers_the_truth_and_counting_seeds_does_not() -> None:
    rng = random.Random(1)
    num_covered = num_naive = 0
    for _ in range(NUM_SIMULATIONS):
        groups = prompts_of_normals(rng, 12, 6, 0.3)
        num_covered += covered(clustered_mean(groups, 0.95), 0.3)
        # The control: every seed as if it were a prompt.
        num_naive += covered(clustered_mean([(value,) for group in groups for value in group], 0.95), 0.3)
    assert FEWEST < num_covered / NUM_SIMULATIONS < MOST
    assert num_naive / NUM_SIMULATIONS < 0.8


@pytest.mark.parametrize("share", [0.5, 0.9, 0.97])
def test_a_share_is_covered_and_student_misses_near_the_end(share: float) -> None:
    rng = random.Random(2)
    num_covered = num_student = 0
    for _ in range(NUM_SIMULATIONS):
        groups = prompts_of_shares(rng, 16, 3, share)
        num_covered += covered(clustered_share(groups, 0.95), share)
        num_student += covered(clustered_mean(groups, 0.95), share)
    assert num_covered / NUM_SIMULATIONS > FEWEST
    if share == 0.97:
        assert num_student / NUM_SIMULATIONS < FEWEST


def test_a_share_that_is_one_everywhere_still_has_a_width() -> None:
    found = clustered_share([(1.0, 1.0)] * 20, 0.95)
    assert found.value == 1.0
    assert found.high == 1.0
    assert found.low is not None
    assert 0.8 < found.low < 0.9
    few = clustered_share([(1.0, 1.0)] * 5, 0.95)
    assert few.low is not None
    assert few.low < found.low


@pytest.mark.parametrize("truth", [0.0, 0.4])
def test_a_difference_of_pairs_is_covered_and_narrower_than_without_pairs(truth: float) -> None:
    rng = random.Random(3)
    num_covered, widths, unpaired = 0, [], []
    for _ in range(NUM_SIMULATIONS):
        before = prompts_of_normals(rng, 12, 2, 0.0)
        # The same prompts again: what makes one easy makes it easy for both.
        after = [tuple(statistics.fmean(group) + rng.gauss(truth, 0.4) for _ in group) for group in before]
        found = paired_difference(before, after, 0.95)
        num_covered += covered(found, truth)
        assert found.low is not None
        assert found.high is not None
        widths.append(found.high - found.low)
        unpaired.append(2 * math.hypot(*(_reach(side) for side in (before, after))))
    assert FEWEST < num_covered / NUM_SIMULATIONS < MOST
    assert statistics.fmean(widths) < 0.6 * statistics.fmean(unpaired)


def _reach(groups: list[Group]) -> float:
    found = clustered_mean(groups, 0.95)
    assert found.high is not None
    return found.high - found.value


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.9), (0.95, 0.7), (0.5, 0.5), (0.98, 0.98)])
def test_a_difference_of_shares_is_covered(before: float, after: float) -> None:
    rng = random.Random(4)
    num_covered = 0
    for _ in range(NUM_SIMULATIONS):
        a = prompts_of_shares(rng, 16, 2, before)
        b = prompts_of_shares(rng, 16, 2, after)
        num_covered += covered(paired_difference(a, b, 0.95, is_share=True), after - before)
    assert num_covered / NUM_SIMULATIONS > FEWEST


def test_equal_shares_are_not_known_to_be_equal() -> None:
    ones = [(1.0, 1.0)] * 8
    found = paired_difference(ones, ones, 0.95, is_share=True)
    assert found.value == 0
    assert found.low is not None
    assert found.high is not None
    assert found.low == -found.high < -0.1
    assert direction(found, 0.05) == "inconclusive"
    # The control: without the imagined pairs it would seem to be known exactly.
    assert paired_difference(ones, ones, 0.95).high == 0


def test_what_a_difference_shows() -> None:
    assert direction(Clustered(1.0, 0.5, 1.5, 9), 0.1) == "higher"
    assert direction(Clustered(-1.0, -1.5, -0.5, 9), 0.1) == "lower"
    assert direction(Clustered(0.0, -0.05, 0.09, 9), 0.1) == "no difference shown"
    assert direction(Clustered(0.0, -0.05, 0.11, 9), 0.1) == "inconclusive"
    assert direction(Clustered(5.0, None, None, 1), 0.1) == "inconclusive"


def test_several_intervals_share_one_confidence() -> None:
    assert shared_confidence(0.95, 1) == pytest.approx(0.95)
    assert shared_confidence(0.95, 5) == pytest.approx(0.99)
    assert shared_confidence(0.95, 0) == pytest.approx(0.95)
