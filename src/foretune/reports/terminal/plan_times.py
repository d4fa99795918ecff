"""Time and cost of plans in a terminal."""

from collections.abc import Iterator, Sequence

from foretune.core.units import duration_text, energy_text, measured_text, rate_text, rounded_share_text, usd_text
from foretune.core.values.plan import Plan
from foretune.core.values.plan_time import JobCost, StepTime
from foretune.reports.terminal.several_devices import several_devices_lines, spot_lines

_LEAST_SHARE = 0.005


def time_lines(plans: Sequence[Plan]) -> Iterator[str]:
    """Of one device, time and cost in a sentence each; of several, only why some have none."""
    if len(plans) == 1 and plans[0].time is not None:
        (plan,) = plans
        if plan.verdict == "does not fit":
            yield "With enough memory, and these settings:"
        yield step_text(plans[0].time)
        if plan.cost is not None:
            yield job_text(plan.cost)
            yield from spot_lines(plan.cost)
    if len(plans) == 1:
        yield from several_devices_lines(plans[0])
    reasons: dict[str, list[str]] = {}
    for plan in plans:
        if plan.time is None and plan.no_time is not None:
            reasons.setdefault(f"No step time, not known: {plan.no_time}", []).append(plan.device)
        elif plan.cost is None and plan.no_cost is not None:
            reasons.setdefault(f"No cost, not known: {plan.no_cost}", []).append(plan.device)
    for reason, devices in reasons.items():
        yield reason if len(devices) == len(plans) else f"{', '.join(devices)}: {reason}"


def step_text(time: StepTime) -> str:
    """The step with its band, and what it waits for."""
    waits = sorted(time.shares.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {rounded_share_text(share)}" for name, share in waits if share >= _LEAST_SHARE)
    step = measured_text(time.step_s, time.low_s, time.high_s, "s")
    return f"Step time {step}, {rate_text(time.samples_per_s, 'sample')}; waits for: {shares}."


def job_text(cost: JobCost) -> str:
    """The whole job: time, energy, money with the source of the price."""
    length = "The whole job" if cost.num_steps is None else f"{cost.num_steps:,} steps"
    words = [duration_text(cost.total_s)]
    if cost.energy_wh is not None:
        words.append(energy_text(cost.energy_wh))
    if cost.usd is not None and cost.usd_per_hour is not None:
        words.append(f"{usd_text(cost.usd)} at {usd_text(cost.usd_per_hour)}/h ({cost.price_source})")
    else:
        words.append(f"no price: {cost.price_source}. Give one: foretune plan ... --price DEVICE=USD")
    return f"{length}: {', '.join(words)}"


def time_columns(plans: Sequence[Plan]) -> dict[str, list[str]]:
    """The columns of a table, by heading."""
    rows = [time_cells(plan) for plan in plans]
    columns = dict(zip(("step", "whole job", "cost"), map(list, zip(*rows, strict=True)), strict=True))
    spots = [None if plan.cost is None else plan.cost.spot for plan in plans]
    if any(spots):
        columns["on spot"] = ["" if spot is None or spot.usd is None else usd_text(spot.usd) for spot in spots]
    return columns


def time_cells(plan: Plan) -> list[str]:
    """The step, the whole job and its price, for a table; in parentheses where it does not fit."""
    if plan.time is None:
        return ["", "", ""]
    cost = plan.cost
    texts = [
        duration_text(plan.time.step_s),
        "" if cost is None else duration_text(cost.total_s),
        "" if cost is None or cost.usd is None else usd_text(cost.usd),
    ]
    return [f"({text})" if text and plan.verdict == "does not fit" else text for text in texts]


def job_rows(cost: JobCost) -> Iterator[tuple[str, float | None]]:
    """The parts of a job by name, in seconds."""
    yield "set-up", cost.set_up_s
    yield "download", cost.download_s
    yield "caching", cost.caching_s
    yield "training", cost.training_s
    yield "validation", cost.validation_s
    yield "saves", cost.saves_s
