"""Spot instances: the closed form against a simulation, and what must hold whatever the figures are."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.planner.timing.spot import SpotJob, SpotTerms, best_save_every, spot_time

HOUR_S, DAY_S = 3600.0, 86_400.0
JOB = SpotJob(start_s=120.0, once_s=600.0, work_s=10 * HOUR_S, num_steps=1000, save_s=30.0, save_every=130)
OFTEN = SpotTerms(interruptions_per_day=12.0, wait_s=300.0)

JOBS = st.builds(
    SpotJob,
    start_s=st.floats(0, 600),
    once_s=st.floats(0, 3600),
    work_s=st.floats(60, 2 * DAY_S),
    num_steps=st.integers(1, 5000),
    save_s=st.floats(0.01, 300),
    save_every=st.integers(1, 5000),
)
TERMS = st.builds(SpotTerms, interruptions_per_day=st.floats(0.01, 6), wait_s=st.floats(0, 3600))


def simulated_s(job: SpotJob, terms: SpotTerms, num_machines: int, draws: random.Random) -> tuple[float, float, int]:
    """One job second for second: paid time, waiting, interruptions."""
    rate = terms.per_s(num_machines)
    paid_s = wait_s = 0.0
    interruptions = 0

    def complete(restart_s: float, length_s: float) -> None:
        nonlocal paid_s, wait_s, interruptions
        needed_s = length_s
        while True:
            lives_s = draws.expovariate(rate)
            if lives_s >= needed_s:
                paid_s += needed_s
                return
            paid_s += lives_s
            wait_s += terms.wait_s
            interruptions += 1
            needed_s = restart_s + length_s

    complete(0.0, job.start_s + job.once_s)
    for count, length_s in job.stretches:
        for _ in range(count):
            complete(job.start_s, length_s)
    return paid_s, wait_s, interruptions


@pytest.mark.parametrize("num_machines", [1, 4])
def test_the_closed_form_is_the_mean_of_simulated_jobs(num_machines: int) -> None:
    draws, number = random.Random(20260), 2000
    runs = [simulated_s(JOB, OFTEN, num_machines, draws) for _ in range(number)]
    expected = spot_time(JOB, OFTEN, num_machines)
    for simulated, closed in zip(
        zip(*runs, strict=True), (expected.paid_s, expected.wait_s, expected.interruptions), strict=True
    ):
        mean = sum(simulated) / number
        spread = math.sqrt(sum((one - mean) ** 2 for one in simulated) / number)
        # Four standard errors of the mean; the draws are always the same.
        assert abs(mean - closed) < 4 * spread / math.sqrt(number)


def test_without_interruptions_nothing_is_lost() -> None:
    found = spot_time(JOB, SpotTerms(interruptions_per_day=0.0))
    assert found.total_s == found.paid_s == pytest.approx(120 + 600 + 10 * HOUR_S + 8 * 30)
    assert found.again_s == pytest.approx(0)
    assert best_save_every(JOB, SpotTerms(interruptions_per_day=0.0)) == JOB.num_steps


def test_stretches_hold_every_step_once() -> None:
    assert JOB.stretches == ((7, 130 * 36.0 + 30.0), (1, 90 * 36.0 + 30.0))
    assert replace(JOB, save_every=None).stretches == ((1, JOB.work_s + 30.0),)
    assert replace(JOB, save_every=500).stretches == ((2, 500 * 36.0 + 30.0),)


def test_the_interval_is_that_of_young_where_saves_are_short() -> None:
    """sqrt(2 x 10 s x 6 h), in steps of 36 s: 657 s less the save."""
    job = replace(JOB, save_s=10.0)
    terms = SpotTerms(interruptions_per_day=4.0)
    young_s = math.sqrt(2 * 10.0 * 6 * HOUR_S)
    assert best_save_every(job, terms) == pytest.approx(young_s / 36.0, abs=2)


@given(JOBS, TERMS, st.integers(1, 8))
def test_no_interval_is_much_better_than_the_recommended_one(job: SpotJob, terms: SpotTerms, num_machines: int) -> None:
    best = best_save_every(job, terms, num_machines)
    assert best is not None
    assert job.num_steps is not None
    recommended_s = spot_time(job.every(best), terms, num_machines).paid_s
    others = {max(1, best // 2), best * 2, max(1, best // 8), best * 8, 1, job.num_steps, job.save_every or 1}
    if math.isfinite(recommended_s):
        # Whole steps and the first terms of a series: not exactly the best.
        assert recommended_s <= 1.02 * min(spot_time(job.every(other), terms, num_machines).paid_s for other in others)


@given(JOBS, TERMS, st.floats(1.01, 3.0))
def test_more_of_anything_takes_longer(job: SpotJob, terms: SpotTerms, factor: float) -> None:
    now = spot_time(job, terms)
    assert now.total_s >= job.undisturbed_s * (1 - 1e-9)
    more = (
        spot_time(job, replace(terms, interruptions_per_day=terms.interruptions_per_day * factor)),
        spot_time(replace(job, work_s=job.work_s * factor), terms),
        spot_time(replace(job, start_s=job.start_s * factor), terms),
        spot_time(job, terms, num_machines=2),
    )
    assert all(other.paid_s >= now.paid_s * (1 - 1e-9) for other in more)


def test_a_job_that_never_ends_is_infinite() -> None:
    endless = replace(JOB, work_s=3000 * HOUR_S, save_every=None)
    assert math.isinf(spot_time(endless, OFTEN).paid_s)
