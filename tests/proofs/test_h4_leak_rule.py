"""H4: the rule for leaks on made series of memory, of kinds and sizes that it was not chosen on."""

import math
import random
from collections.abc import Callable

import pytest

from foretune.analyse.memory_growth import find_leak
from tests.conftest import ProofSize

pytestmark = pytest.mark.proof
MIB = 2**20

Series = list[tuple[int, int]]
Shape = Callable[[random.Random, int], list[float]]
"""From a generator and a number of steps to what is held after each, as a share of what was held before the first."""


def steady_leak(rng: random.Random, num: int) -> list[float]:
    total = rng.uniform(0.03, 0.4)
    return [1 + total * step / num for step in range(num)]


def leak_now_and_then(rng: random.Random, num: int) -> list[float]:
    """Kept at every few steps, as by a list of losses with their graphs that is filled where they are logged."""
    every, total = rng.randint(2, 4), rng.uniform(0.03, 0.4)
    return [1 + total * (step // every) * every / num for step in range(num)]


def uneven_leak(rng: random.Random, num: int) -> list[float]:
    """Each step keeps another amount: images of many sizes."""
    kept = [rng.lognormvariate(0, 0.5) for _ in range(num)]
    share, held, shares = rng.uniform(0.03, 0.4) / sum(kept), 1.0, []
    for one in kept:
        held += one * share
        shares.append(held)
    return shares


def flat(_: random.Random, num: int) -> list[float]:
    return [1.0] * num


def filling_cache(rng: random.Random, num: int) -> list[float]:
    total, reached = rng.uniform(0.05, 0.5), num * rng.uniform(0.03, 0.15)
    return [1 + total * (1 - math.exp(-step / reached)) for step in range(num)]


def saw(rng: random.Random, num: int) -> list[float]:
    """Garbage that is collected now and then."""
    height, every = rng.uniform(0.02, 0.2), rng.randint(5, max(6, num // 8))
    return [1 + height * (step % every) / every for step in range(num)]


def one_jump(rng: random.Random, num: int) -> list[float]:
    """A validation loads a decoder and leaves it."""
    at, height = rng.randrange(num), rng.uniform(0.02, 0.3)
    return [1 + (height if step >= at else 0.0) for step in range(num)]


def series_of(shape: Shape, rng: random.Random) -> Series:
    """With a jitter, in the units of an allocator, from some length and size of a run."""
    num, held = rng.randint(60, 400), rng.uniform(300, 40_000) * MIB
    unit, jitter = rng.choice([1, 512, 2 * MIB]), rng.uniform(0, 0.001)
    shares = shape(rng, num)
    return [(step, math.ceil(held * (share + rng.gauss(0, jitter)) / unit) * unit) for step, share in enumerate(shares)]


@pytest.mark.parametrize("shape", [steady_leak, leak_now_and_then, uneven_leak])
def test_h4_made_leaks_are_found(shape: Shape, proof_size: ProofSize, report_figure: Callable[[str], None]) -> None:
    rng, num = random.Random(f"leaks {shape.__name__}"), proof_size(2000, 200)
    found = sum(find_leak(series_of(shape, rng)) is not None for _ in range(num))
    report_figure(f"{shape.__name__}: {found} of {num} found")
    assert found >= 0.95 * num


@pytest.mark.parametrize("shape", [flat, filling_cache, saw, one_jump])
def test_h4_made_series_without_a_leak_raise_no_alarm(
    shape: Shape, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    rng, num = random.Random(f"healthy {shape.__name__}"), proof_size(2000, 200)
    alarms = sum(find_leak(series_of(shape, rng)) is not None for _ in range(num))
    # The control: a last value above the first is what a naive rule would go by.
    rng = random.Random(f"healthy {shape.__name__}")
    naive = sum(series[-1][1] > series[0][1] for series in (series_of(shape, rng) for _ in range(num)))
    report_figure(f"{shape.__name__}: {alarms} alarms in {num}; naive {naive}")
    assert alarms <= 0.01 * num
    assert naive > 0.3 * num
