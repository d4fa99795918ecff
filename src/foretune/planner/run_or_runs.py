"""Two GPUs or two runs: one run on several devices beside as many runs of the same training, each on one of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from foretune.catalog.devices import Device, cards_of
from foretune.choices.experiment import Experiment
from foretune.core.errors import UserError
from foretune.core.units import rounded_share_text
from foretune.core.values.plan import Plan
from foretune.core.values.plan_time import JobCost, RunOrRuns, StepTime
from foretune.planner.planning import Footprint, forecast_on, judge_on, other_footprint
from foretune.planner.timing.terms import Terms

_CLEAR_LOSS = 0.02
"""Of what the devices could do; less is not worth a reason."""


def with_run_or_runs(plan: Plan, found: Footprint, device: Device, terms: Terms) -> Plan:
    """Adds the comparison to the plan of a run on several devices, if both times are known."""
    answer = _compared(plan, found, device, terms)
    return plan if answer is None else plan.model_copy(update={"run_or_runs": answer})


def _compared(plan: Plan, found: Footprint, device: Device, terms: Terms) -> RunOrRuns | None:
    num_devices = found.experiment.parallel.devices
    # On cards of different kinds, which of them a single run has decides more than their number.
    if num_devices == 1 or len(cards_of(device)) > 1 or plan.time is None or plan.cost is None:
        return None
    experiment = on_one_device(found.experiment)
    try:
        single = other_footprint(found, experiment, found.size)
    except UserError:
        return None
    forecast = forecast_on(single, device, terms)
    if forecast.time is None or forecast.cost is None:
        return None
    judged = judge_on(single, device)
    return compared(
        num_devices,
        plan.time,
        plan.cost,
        Single(
            time=forecast.time,
            cost=forecast.cost,
            fits=judged.verdict == "fits",
            process_bytes=judged.process.likely,
            settings={"train.gradient_accumulation": str(experiment.train.gradient_accumulation)},
        ),
        samples_per_step=experiment.samples_per_step(),
        samples_as_is=experiment.samples_per_step() // num_devices,
    )


@dataclass(frozen=True, kw_only=True)
class Single:
    """The run on one device."""

    time: StepTime
    cost: JobCost
    fits: bool
    process_bytes: int
    settings: Mapping[str, str]


def compared(
    num_devices: int,
    time: StepTime,
    cost: JobCost,
    single: Single,
    *,
    samples_per_step: int,
    samples_as_is: int | None = None,
) -> RunOrRuns:
    """Returns the comparison of a run on several devices with runs on one device each."""
    return RunOrRuns(
        num_devices=num_devices,
        one_run_s=cost.total_s,
        one_run_usd=cost.usd,
        single_s=single.cost.total_s,
        single_usd=single.cost.usd,
        single_fits=single.fits,
        single_bytes=single.process_bytes,
        settings=dict(single.settings),
        samples_per_step=samples_per_step,
        samples_as_is=samples_as_is,
        reason=_reason(num_devices, time, cost, single.time, single.cost),
    )


def on_one_device(experiment: Experiment) -> Experiment:
    """Returns the same training on one device: as many samples in a step, by accumulation."""
    parallel, train = experiment.parallel, experiment.train
    passes = train.gradient_accumulation * parallel.devices
    return experiment.model_copy(
        update={
            "parallel": parallel.model_copy(update={"devices": 1, "sharding": "none", "shard_devices": None}),
            "train": train.model_copy(update={"gradient_accumulation": passes}),
        }
    )


def _reason(num_devices: int, time: StepTime, cost: JobCost, single_time: StepTime, single_cost: JobCost) -> str | None:
    """Names what costs the one run most of what its devices could do; None if they do nearly all of it."""
    whole_s = num_devices * cost.total_s
    steps_s = num_devices * cost.training_s - single_cost.training_s
    rest_s = (num_devices - 1) * (cost.set_up_s + cost.download_s + cost.saves_s)
    waits = time.shares.get("communication", 0.0)
    if max(steps_s, rest_s) / whole_s < _CLEAR_LOSS:
        return None
    if rest_s >= steps_s:
        return "all devices wait while the run is set up, downloads and saves"
    if waits * time.step_s >= (time.step_s - single_time.step_s / num_devices) / 2:
        return f"{rounded_share_text(waits)} of a step waits for communication"
    return "each device repeats the update of the weights and waits for its own host"
