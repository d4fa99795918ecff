"""Several devices in words: how they are connected, one run or several, and spot instances."""

from collections.abc import Iterator

from foretune.core.units import counted_text, duration_text, memory_text, rounded_share_text, usd_text
from foretune.core.values.plan import Plan
from foretune.core.values.plan_time import JobCost, RunOrRuns, SpotCost
from foretune.reports.remedy_words import settings_text


def several_devices_lines(plan: Plan) -> Iterator[str]:
    """Yields how the devices of a plan are connected, and what several runs would be instead."""
    if plan.connection:
        yield f"Assumed: {'; '.join(plan.connection)}"
    if plan.run_or_runs is not None:
        yield run_or_runs_text(plan.run_or_runs)


def run_or_runs_text(answer: RunOrRuns) -> str:
    """Two GPUs or two runs, in a sentence with the reason."""
    count = answer.num_devices
    question = f"{count} devices, or {count} runs on one each?"
    if not answer.single_fits:
        return (
            f"{question} A run does not fit on one device with these settings ({memory_text(answer.single_bytes)} "
            "estimated). What makes it fit: the same command with parallel.devices=1"
        )
    one = f"One run on {count}: {duration_text(answer.one_run_s)}{_for(answer.one_run_usd)}."
    each = f"A run on one device{_with_settings(answer)}: {duration_text(answer.single_s)}{_for(answer.single_usd)}."
    soon = f"One run has its result {answer.speedup:.1f} times as soon"
    more = answer.results_of_runs - 1
    if more < 0:
        return f"{question} {one} {each} {soon}: even for {count} results, one run after the other is faster."
    if answer.reason is None:
        return f"{question} {one} {each} {soon} and loses next to nothing: communication is hidden behind computation."
    return (
        f"{question} {one} {each} {soon}; {count} runs side by side give {rounded_share_text(more)} more results per "
        f"hour, because in one run {answer.reason}."
    )


def _with_settings(answer: RunOrRuns) -> str:
    """How a run on one device has the global batch of the run on all of them."""
    samples, as_is = answer.samples_per_step, answer.samples_as_is
    if as_is is None:
        return f" as recommended (a step also has {counted_text(samples, 'samples')})"
    settings = f" with {settings_text(answer.settings)}" if answer.settings else ""
    return f"{settings} (so that a step also has {counted_text(samples, 'samples')}, not {as_is})"


def spot_lines(cost: JobCost) -> Iterator[str]:
    """Yields the expected time and price on spot instances, and how often to save."""
    spot = cost.spot
    if spot is None:
        return
    every = "at the end alone" if spot.save_every is None else f"with save.every={spot.save_every}"
    if spot.expected_s is None or spot.interruptions is None or spot.again_s is None:
        yield f"On spot: practically never ends {every}, because of the interruptions."
    else:
        yield (
            f"On spot: {duration_text(spot.expected_s)} expected{_for(spot.usd)} at {usd_text(spot.usd_per_hour)}/h "
            f"{every}, {_against(cost)}. At {spot.interruptions_per_day:g} interruptions a day per machine: "
            f"{spot.interruptions:.2g} in the job, {duration_text(spot.again_s)} of restarts and repeated work."
        )
    yield from _better_interval(spot)


def _better_interval(spot: SpotCost) -> Iterator[str]:
    best = spot.best_save_every
    if best is None or spot.best_expected_s is None or best == spot.save_every:
        return
    saves = "" if spot.expected_s is None else f", {duration_text(spot.expected_s - spot.best_expected_s)} less"
    yield (
        f"Save every {best:,} steps (save.every={best}, the rule of Young and Daly): "
        f"{duration_text(spot.best_expected_s)} expected{_for(spot.best_usd)}{saves}."
    )


def _against(cost: JobCost) -> str:
    price = "no on-demand price" if cost.usd is None else usd_text(cost.usd)
    return f"against {duration_text(cost.total_s)}, {price} on demand"


def _for(usd: float | None) -> str:
    return "" if usd is None else f", {usd_text(usd)}"
