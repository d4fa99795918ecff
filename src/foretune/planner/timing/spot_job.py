"""What a whole job costs on spot instances, beside its price on demand."""

import math

from foretune.catalog.devices import Device
from foretune.core.values.plan_time import JobCost, SpotCost, StepTime
from foretune.planner.timing.interconnect import interconnect_of
from foretune.planner.timing.job import S_PER_HOUR, BesideSteps, JobTotals, JobWork, job_totals, num_cards
from foretune.planner.timing.spot import SpotJob, best_save_every, spot_assumptions, spot_time
from foretune.planner.timing.terms import Terms


def spot_job(work: JobWork, totals: JobTotals) -> SpotJob:
    """Returns the job as stretches between checkpoints."""
    return SpotJob(
        start_s=totals.set_up_s,
        once_s=totals.download_s + (totals.caching_s or 0.0),
        work_s=totals.training_s + (totals.validation_s or 0.0),
        num_steps=work.num_steps,
        save_s=totals.saves_s / work.num_saves,
        save_every=work.save_every,
    )


def spot_totals(work: JobWork, device: Device, terms: Terms, totals: JobTotals, *, may_choose: bool) -> JobTotals:
    """Returns the totals on spot instances. `may_choose`: checkpoints are as often as costs least."""
    assert terms.spot is not None, "spot instances were requested"
    machines, job = num_machines(work, device, terms), spot_job(work, totals)
    best = best_save_every(job, terms.spot, machines) if may_choose else None
    expected = spot_time(job if best is None else job.every(best), terms.spot, machines)
    price = terms.spot_price_of(device)
    usd = None if price is None else price * num_cards(work, device) * expected.paid_s / S_PER_HOUR
    return totals._replace(total_s=expected.total_s, usd=usd)


def with_spot(
    cost: JobCost, work: JobWork, time: StepTime, device: Device, terms: Terms, beside: BesideSteps
) -> JobCost:
    """Adds what the job costs on spot instances, where they were requested and the price was given."""
    price, spot = terms.spot_price_of(device), terms.spot
    if price is None or spot is None:
        return cost
    totals = job_totals(work, device, price, time.step_s, time.hardware_flops, beside)
    machines, job = num_machines(work, device, terms), spot_job(work, totals)
    best = best_save_every(job, spot, machines)
    now = spot_time(job, spot, machines)
    then = now if best is None else spot_time(job.every(best), spot, machines)
    usd_per_s = price * num_cards(work, device) / S_PER_HOUR
    found = SpotCost(
        interruptions_per_day=spot.interruptions_per_day,
        num_machines=machines,
        wait_s=spot.wait_s,
        save_every=work.save_every,
        expected_s=_finite(now.total_s),
        interruptions=_finite(now.interruptions),
        again_s=_finite(now.again_s),
        usd=_finite(usd_per_s * now.paid_s),
        usd_per_hour=price,
        best_save_every=best,
        best_expected_s=_finite(then.total_s),
        best_usd=_finite(usd_per_s * then.paid_s),
    )
    assumptions = (*cost.assumptions, *spot_assumptions(spot, machines))
    return cost.model_copy(update={"spot": found, "assumptions": assumptions})


def num_machines(work: JobWork, device: Device, terms: Terms) -> int:
    """Returns how many machines the devices of a job are in."""
    if work.num_devices == 1:
        return 1
    return math.ceil(work.num_devices / interconnect_of(device, terms.links).domain_devices)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
