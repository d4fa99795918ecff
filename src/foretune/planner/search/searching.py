"""From a request to a recommendation: the devices, the settings, the best of them, and how much was looked at."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretune.catalog.devices import Device, cards_of
from foretune.core.errors import UserError
from foretune.core.values.plan import Plan
from foretune.core.values.plan_time import JobCost, RunOrRuns
from foretune.core.vocabulary import RunPhase
from foretune.planner.knobs import SettingChange
from foretune.planner.planning import Footprint, fits_stretch, other_footprint, plan_on
from foretune.planner.run_or_runs import Single, compared, with_run_or_runs
from foretune.planner.search.best import Effort, Goal, PlanLimits, best_of, front_of
from foretune.planner.search.nothing_found import nothing_found
from foretune.planner.search.options import Option, SearchPlace, legal_settings, place_on
from foretune.planner.search.sought import Sought
from foretune.planner.search.space import dividing, num_samples_of, space_of
from foretune.planner.timing.speed import NotKnown
from foretune.planner.timing.spot import best_save_every
from foretune.planner.timing.spot_job import spot_job

_CURES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    (RunPhase.CACHE_TEXT, "quantize.text_encoders", ("int8", "nf4")),
    (RunPhase.CACHE_LATENTS, "levers.vae_tiling", (True,)),
)
_MOST_DRAWN = 1500
"""Configurations that are timed for a plot alone."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Settings on a device, with their plan."""

    plan: Plan
    settings: Mapping[str, Any]
    """By key of the experiment: what differs from the request."""
    words: Mapping[str, str]
    """The same as typed."""

    @property
    def total_s(self) -> float:
        """Of the whole job; expected, on spot instances."""
        cost = self._cost
        return cost.total_s if cost.spot is None else cost.spot.expected_s or math.inf

    @property
    def usd(self) -> float | None:
        """Of the whole job; expected, on spot instances."""
        cost = self._cost
        return cost.usd if cost.spot is None else cost.spot.usd

    @property
    def _cost(self) -> JobCost:
        assert self.plan.cost is not None, "a configuration without a cost is not recommended"
        return self.plan.cost


@dataclass(frozen=True, kw_only=True)
class SearchedPoint:
    """A configuration of the search whose memory was estimated quickly, for a plot."""

    device: str
    num_devices: int
    total_s: float
    usd: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a search."""

    goal: Goal
    limits: PlanLimits
    best: Choice
    runner_up: Choice | None
    front: tuple[Choice, ...]
    """The fastest first; empty if no device has a price."""
    run_or_runs: RunOrRuns | None
    """The recommendation beside as many runs on one device each; if it has one device, the best of several of that
    device beside it. None if only one number of devices was searched."""
    num_samples: int
    """Of an optimizer step, over all devices."""
    counts: tuple[int, ...]
    """Numbers of devices that were searched."""
    skipped_counts: tuple[int, ...]
    """Requested numbers of devices among which the samples of a step cannot be divided."""
    num_kinds: int
    """Kinds of devices that were searched."""
    cloud: tuple[SearchedPoint, ...]
    """A sample of all configurations, if a plot was requested."""
    num_options: int
    num_timed: int
    num_replayed: int
    left_out: Mapping[str, tuple[str, ...]]
    """Devices by the reason why they were not searched."""
    without_time: Mapping[str, int]
    """How many configurations that might fit have no step time, by what is not known."""


def search(base: Footprint, devices: Sequence[Device], sought: Sought, *, draws: bool = False) -> Answer:
    """Searches all combinations of settings and devices. Raises if none fits and keeps the limits.

    `draws`: also returns a sample of all configurations.
    """
    effort = Effort()
    options, left_out = options_of(base, devices, sought)
    effort.num_options = len(options)
    possible = [option for option in options if option.may_fit]
    best, runner_up = best_of(possible, sought.goal, sought.limits, effort)
    front = front_of(possible, sought.limits, effort) if best is not None else ()
    if best is None:
        raise UserError(nothing_found(possible, devices, sought, left_out, effort))
    chosen = {id(option): _choice(option, sought) for option in (best, runner_up, *front) if option is not None}
    num_samples = num_samples_of(base.experiment, sought.min_batch)
    counts = dividing(sought.counts, num_samples, sought.min_batch)
    return Answer(
        goal=sought.goal,
        limits=sought.limits,
        best=chosen[id(best)],
        runner_up=None if runner_up is None else chosen[id(runner_up)],
        front=tuple(chosen[id(option)] for option in front),
        run_or_runs=_run_or_runs(best, chosen[id(best)], possible, sought, effort),
        num_samples=num_samples,
        counts=counts,
        skipped_counts=tuple(sorted(set(sought.counts) - set(counts))),
        num_kinds=len({option.place.device.name for option in options}),
        cloud=tuple(_cloud(possible, effort)) if draws else (),
        num_options=len(options),
        num_timed=effort.num_timed,
        num_replayed=effort.num_replayed,
        left_out={reason: tuple(names) for reason, names in left_out.items()},
        without_time=dict(effort.unknown),
    )


def _run_or_runs(
    best: Option, choice: Choice, possible: Sequence[Option], sought: Sought, effort: Effort
) -> RunOrRuns | None:
    """Compares the best with its device alone, or with the next number of the same device."""
    if best.setting.num_devices > 1:
        return choice.plan.run_or_runs
    same = [option for option in possible if option.place is best.place and option.setting.num_devices > 1]
    if not same or choice.plan.time is None or choice.plan.cost is None:
        return None
    count = min(option.setting.num_devices for option in same)
    several, _ = best_of(
        [option for option in same if option.setting.num_devices == count], "fastest", PlanLimits(), effort
    )
    if several is None:
        return None
    plan = _choice(several, sought).plan
    assert plan.time is not None, "the best is timed"
    assert plan.cost is not None, "and has a cost"
    single = Single(
        time=choice.plan.time,
        cost=choice.plan.cost,
        fits=True,
        process_bytes=choice.plan.process_bytes,
        settings=choice.words,
    )
    return compared(
        count, plan.time, plan.cost, single, samples_per_step=best.setting.num_samples * best.setting.num_devices
    )


def _cloud(possible: Sequence[Option], effort: Effort) -> Iterator[SearchedPoint]:
    """Yields configurations with a price and a time: those that were timed, and evenly chosen others."""
    priced = [option for option in possible if option.place.price_usd_per_hour is not None]
    stride = max(1, len(priced) // _MOST_DRAWN)
    for number, option in enumerate(priced):
        if number % stride and not effort.is_timed(option):
            continue
        totals = effort.totals_of(option)
        if totals is not None and totals.usd is not None and math.isfinite(totals.total_s):
            yield SearchedPoint(
                device=option.place.device.name,
                num_devices=option.setting.num_devices,
                total_s=totals.total_s,
                usd=totals.usd,
            )


def options_of(base: Footprint, devices: Sequence[Device], sought: Sought) -> tuple[list[Option], dict[str, list[str]]]:
    """Returns all legal settings on all devices, and the devices that are left out by the reason."""
    left_out: dict[str, list[str]] = {}
    places: list[SearchPlace] = []
    for device in devices:
        try:
            places.append(_place(base, device, sought))
        except NotKnown as missing:
            left_out.setdefault(str(missing), []).append(device.name)
    space = space_of(base.experiment, sum(base.subject.geometry.stacks), sought.typed, sought.min_batch, sought.counts)
    settings = list(legal_settings(base, space))
    found = [Option(setting, place) for place in places for setting in settings]
    return [option for option in found if option.is_able], left_out


def _place(base: Footprint, device: Device, sought: Sought) -> SearchPlace:
    if device.kind == "cpu":
        raise NotKnown("the speed of training on a CPU")
    if len(cards_of(device)) > 1:
        raise NotKnown("the best settings for cards of different kinds; plan them without --goal")
    needed = _needed_for_caches(base, device)
    if needed is None:
        raise NotKnown("settings with which images and captions can be encoded there: too little memory")
    return place_on(base, device, sought.terms, needed, may_choose_saves="save.every" not in sought.typed)


def _needed_for_caches(base: Footprint, device: Device) -> dict[str, Any] | None:
    """Returns the settings with which the caches fit, whatever the training step; None if there are none."""
    needed: dict[str, Any] = {}
    for stretch, key, values in _CURES:
        if fits_stretch(base, device, stretch):
            continue
        for value in values:
            experiment = SettingChange("other", {**needed, key: value}).applied(base.experiment)
            if fits_stretch(other_footprint(base, experiment, base.size), device, stretch):
                needed[key] = value
                break
        else:
            return None
    return needed


def _choice(option: Option, sought: Sought) -> Choice:
    changed = option.changed
    change = changed.change
    footprint = changed.footprint
    if option.place.terms.spot is not None and option.place.may_choose_saves:
        every = best_save_every(spot_job(option.job, option.undisturbed), option.place.terms.spot, option.num_machines)
        change = replace(change, settings={**change.settings, "save.every": every})
        footprint = other_footprint(footprint, change.applied(option.setting.base.experiment), footprint.size)
    change = change.without_idle(option.setting.base.experiment)
    plan = plan_on(footprint, option.place.device, terms=sought.terms)
    plan = with_run_or_runs(plan, footprint, option.place.device, sought.terms)
    return Choice(plan=plan, settings=dict(change.settings), words=change.words())
