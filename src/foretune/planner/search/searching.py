"""From a request to a recommendation: the devices, the settings, the best of them, and how much was looked at."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretune.catalog.devices import Device
from foretune.core.errors import UserError
from foretune.core.values.plan import Plan
from foretune.core.vocabulary import RunPhase
from foretune.planner.knobs import SettingChange
from foretune.planner.planning import Footprint, fits_stretch, other_footprint, plan_on
from foretune.planner.search.best import Effort, Goal, PlanLimits, best_of, front_of
from foretune.planner.search.options import Option, SearchPlace, legal_settings, place_on, reserved_share
from foretune.planner.search.space import space_of
from foretune.planner.timing.speed import NotKnown
from foretune.planner.timing.terms import PUBLISHED, Terms

_CURES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    (RunPhase.CACHE_TEXT, "quantize.text_encoders", ("int8", "nf4")),
    (RunPhase.CACHE_LATENTS, "levers.vae_tiling", (True,)),
)


@dataclass(frozen=True, kw_only=True)
class Sought:
    """What is searched for."""

    goal: Goal
    limits: PlanLimits = field(default_factory=PlanLimits)
    min_batch: int = 1
    typed: frozenset[str] = frozenset()
    """Keys that stay as they are."""
    terms: Terms = PUBLISHED


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Settings on a device, with their plan."""

    plan: Plan
    settings: Mapping[str, Any]
    """By key of the experiment: what differs from the request."""
    words: Mapping[str, str]
    """The same as typed."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a search."""

    goal: Goal
    limits: PlanLimits
    best: Choice
    runner_up: Choice | None
    front: tuple[Choice, ...]
    """The fastest first; empty if no device has a price."""
    num_options: int
    num_timed: int
    num_replayed: int
    left_out: Mapping[str, tuple[str, ...]]
    """Devices by the reason why they were not searched."""
    without_time: Mapping[str, int]
    """How many configurations that might fit have no step time, by what is not known."""


def search(base: Footprint, devices: Sequence[Device], sought: Sought) -> Answer:
    """Searches all combinations of settings and devices. Raises if none fits and keeps the limits."""
    effort = Effort()
    options, left_out = options_of(base, devices, sought)
    effort.num_options = len(options)
    possible = [option for option in options if option.may_fit]
    best, runner_up = best_of(possible, sought.goal, sought.limits, effort)
    front = front_of(possible, sought.limits, effort) if best is not None else ()
    if best is None:
        raise UserError(_nothing_found(len(options), possible, sought, left_out, effort))
    return Answer(
        goal=sought.goal,
        limits=sought.limits,
        best=_choice(best, sought.terms),
        runner_up=None if runner_up is None else _choice(runner_up, sought.terms),
        front=tuple(_choice(option, sought.terms) for option in front),
        num_options=len(options),
        num_timed=effort.num_timed,
        num_replayed=effort.num_replayed,
        left_out={reason: tuple(names) for reason, names in left_out.items()},
        without_time=dict(effort.unknown),
    )


def options_of(base: Footprint, devices: Sequence[Device], sought: Sought) -> tuple[list[Option], dict[str, list[str]]]:
    """Returns all legal settings on all devices, and the devices that are left out by the reason."""
    left_out: dict[str, list[str]] = {}
    places: list[SearchPlace] = []
    for device in devices:
        try:
            places.append(_place(base, device, sought.terms))
        except NotKnown as missing:
            left_out.setdefault(str(missing), []).append(device.name)
    space = space_of(base.experiment, sum(base.subject.geometry.stacks), sought.typed, sought.min_batch)
    settings = list(legal_settings(base, space))
    found = [Option(setting, place) for place in places for setting in settings]
    return [option for option in found if option.is_able], left_out


def _place(base: Footprint, device: Device, terms: Terms) -> SearchPlace:
    if device.kind == "cpu":
        raise NotKnown("the speed of training on a CPU")
    needed = _needed_for_caches(base, device)
    if needed is None:
        raise NotKnown("settings with which images and captions can be encoded there: too little memory")
    return place_on(base, device, terms, reserved_share(base, device), needed)


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


def _choice(option: Option, terms: Terms) -> Choice:
    changed = option.changed
    change = changed.change.without_idle(option.setting.base.experiment)
    plan = plan_on(changed.footprint, option.place.device, terms=terms)
    return Choice(plan=plan, settings=dict(change.settings), words=change.words())


def _nothing_found(
    num_options: int, possible: Sequence[Option], sought: Sought, left_out: Mapping[str, Sequence[str]], effort: Effort
) -> str:
    why = "None fits in memory. Add devices: --on all."
    if possible:
        why = " ".join(_limits_in_words(sought)) or why
    sentences = [f"None of {num_options:,} configurations meets the request.", *([why] if num_options else [])]
    sentences += [f"Left out: {', '.join(names)}; not known: {reason}." for reason, names in left_out.items()]
    sentences += [f"{number:,} have no step time, not known: {reason}." for reason, number in effort.unknown.items()]
    return " ".join(sentences)


def _limits_in_words(sought: Sought) -> Iterator[str]:
    if sought.limits.deadline_s is not None:
        yield "Those that fit miss the deadline. Raise --deadline."
    if sought.limits.budget_usd is not None:
        yield "Those that fit cost more than the budget, or have no price. Raise --budget, or add --price DEVICE=USD."
    elif sought.goal == "cheapest":
        yield "No device has a price. Add --price DEVICE=USD."
