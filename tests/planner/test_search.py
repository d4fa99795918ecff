"""A search finds what trying everything finds, and looks at little of it."""

from collections.abc import Sequence
from functools import cache

import pytest

from foretune.catalog.devices import Device
from foretune.core.errors import UserError
from foretune.planner.asking import Wanted, asked_of, devices_named, find_subject
from foretune.planner.knobs import SettingChange
from foretune.planner.planning import Footprint, footprint, plan_on
from foretune.planner.search.asking import search_question, sought_of
from foretune.planner.search.best import Goal, PlanLimits, rank
from foretune.planner.search.options import Option
from foretune.planner.search.searching import Answer, Sought, options_of, search
from foretune.planner.search.space import space_of
from foretune.planner.sizing import size_of
from foretune.planner.traces import Traces

CARDS = "rtx-3060,l4,rtx-4090,h100-sxm"
SMALL = ("train.gradient_accumulation=2", "levers.block_swap=0", "data.resolution=2048")
# Few enough to replay all of them.
TYPED = frozenset({"levers.block_swap", "quantize.denoiser"})
UNLIMITED = PlanLimits()


@cache
def base(model: str, *overrides: str) -> Footprint:
    asked = asked_of(Wanted(target=model, overrides=overrides))
    subject = find_subject(asked.model, None)
    return footprint(asked.experiment, subject, size_of(asked.experiment, subject.geometry), Traces())


def cards(names: str = CARDS) -> list[Device]:
    return devices_named(names)


@cache
def tried() -> list[Option]:
    """Every option that fits, all replayed."""
    options, _ = options_of(base("sd3-medium", *SMALL), cards(), Sought(goal="cheapest", typed=TYPED))
    assert 20 < len(options) < 100
    fitting = [option for option in options if option.fits]
    assert 0 < len(fitting) < len(options)
    return fitting


def by_brute_force(options: Sequence[Option], goal: Goal, limits: PlanLimits) -> list[Option]:
    ranked = [
        (found, option.key, option)
        for option in options
        if limits.allow(option.totals) and (found := rank(goal, option, option.totals)) is not None
    ]
    return [option for _, _, option in sorted(ranked, key=lambda one: one[:2])]


def found(goal: Goal, limits: PlanLimits = UNLIMITED) -> Answer:
    return search(base("sd3-medium", *SMALL), cards(), Sought(goal=goal, limits=limits, typed=TYPED))


def limits_between(options: Sequence[Option]) -> PlanLimits:
    """A deadline and a budget that rule some out."""
    times = sorted(option.totals.total_s for option in options)
    prices = sorted(option.totals.usd for option in options if option.totals.usd is not None)
    return PlanLimits(deadline_s=times[len(times) * 2 // 3], budget_usd=prices[len(prices) * 2 // 3])


@pytest.mark.parametrize("goal", ["cheapest", "fastest", "smallest"])
@pytest.mark.parametrize("is_limited", [False, True])
def test_the_answer_is_that_of_brute_force(goal: Goal, is_limited: bool) -> None:
    limits = limits_between(tried()) if is_limited else UNLIMITED
    ordered = by_brute_force(tried(), goal, limits)
    answer = found(goal, limits)
    assert (answer.best.plan.device, dict(answer.best.words)) == named(ordered[0])
    other = next((one for one in ordered if one.place.device.name != ordered[0].place.device.name), None)
    if other is not None:
        assert answer.runner_up is not None
        assert (answer.runner_up.plan.device, dict(answer.runner_up.words)) == named(other)
    assert answer.best.plan.verdict == "fits"


def test_the_front_is_that_of_brute_force() -> None:
    priced = [one for one in tried() if one.totals.usd is not None]
    expected = {
        named_text(one)
        for one in priced
        if not any(
            other.totals.total_s <= one.totals.total_s
            and (other.totals.usd or 0) <= (one.totals.usd or 0)
            and (other.totals.total_s, other.totals.usd) != (one.totals.total_s, one.totals.usd)
            for other in priced
        )
    }
    front = found("cheapest").front
    assert {(choice.plan.device, str(sorted(choice.words.items()))) for choice in front} == expected
    times = [choice.plan.cost.total_s for choice in front if choice.plan.cost is not None]
    assert times == sorted(times)


def test_the_totals_of_an_option_are_those_of_its_plan() -> None:
    """Also with block swap, whose traffic is known without the events of a step."""
    model = base("sd3-medium")
    options, _ = options_of(model, cards("rtx-4090,h100-sxm"), Sought(goal="cheapest"))
    swapping = [one for one in options if one.setting.experiment.levers.block_swap]
    for option in (options[0], options[-1], swapping[0], swapping[-1]):
        plan = plan_on(option.changed.footprint, option.place.device)
        assert plan.time is not None
        assert plan.cost is not None
        assert plan.time.step_s == pytest.approx(option.seconds.step_s)
        assert plan.cost.total_s == pytest.approx(option.totals.total_s)
        assert plan.cost.usd == pytest.approx(option.totals.usd)
        assert option.least.total_s <= option.totals.total_s


def test_bounds_leave_little_to_time_and_less_to_replay() -> None:
    answer = search(base("sd3-medium"), cards("all"), Sought(goal="cheapest"))
    assert answer.num_options > 3000
    assert answer.num_timed < answer.num_options / 2
    assert answer.num_replayed <= 40
    assert any("CPU" in reason for reason in answer.left_out)


def test_what_was_typed_stays() -> None:
    experiment = base("sd3-medium").experiment
    space = space_of(experiment, 24, {"levers.gradient_checkpointing", "quantize.denoiser"})
    changed = [change.applied(experiment) for change in space.changes()]
    assert len(changed) == len(space) > 10
    assert {one.levers.gradient_checkpointing for one in changed} == {1.0}
    assert {one.quantize.denoiser for one in changed} == {"none"}
    assert {one.train.batch_size * one.train.gradient_accumulation for one in changed} == {4}
    assert {one.train.batch_size for one in changed} == {1, 2, 4}


def test_a_smallest_batch_is_kept() -> None:
    experiment = base("sd3-medium").experiment
    for least, batches in ((2, {2, 4}), (4, {4}), (6, {6})):
        changed = [change.applied(experiment) for change in space_of(experiment, 24, (), least).changes()]
        assert {one.train.batch_size for one in changed} == batches


def test_full_fine_tuning_searches_what_is_trained() -> None:
    experiment = base("sd3-medium", "method.kind=full").experiment
    changed = [change.applied(experiment) for change in space_of(experiment, 24).changes()]
    assert {one.train.weight_dtype for one in changed} == {"fp32", "bf16"}
    assert {one.optimizer.kind for one in changed} == {"adamw", "adamw8bit", "adafactor"}
    assert {one.quantize.denoiser for one in changed} == {"none", "float8-training"}
    assert {one.levers.block_swap for one in changed} == {0}


@pytest.mark.parametrize(
    ("on", "limits", "says"),
    [
        ("l4", PlanLimits(deadline_s=60), "--deadline"),
        ("l4", PlanLimits(budget_usd=0.01), "--budget"),
        ("rtx-3060", UNLIMITED, "--price"),
        ("4GiB", UNLIMITED, "not known"),
    ],
)
def test_no_answer_says_what_to_change(on: str, limits: PlanLimits, says: str) -> None:
    with pytest.raises(UserError, match=says):
        search(base("sd3-medium"), cards(on), Sought(goal="cheapest", limits=limits))


def test_a_request_is_read_as_a_whole() -> None:
    wanted = Wanted(target="sd3-medium", overrides=("train.batch_size=2",))
    sought = sought_of(wanted, goal="fastest", deadline="90min", budget="$20", min_batch=2)
    assert sought.limits == PlanLimits(deadline_s=5400, budget_usd=20)
    assert sought.typed == {"train.batch_size"}
    asked, answer = search_question(wanted, sought, cards("l4,h100-sxm"), None)
    assert asked.experiment.train.batch_size == 2
    assert answer.best.plan.device == "h100-sxm"
    with pytest.raises(UserError) as error:
        sought_of(wanted, goal="best", deadline="6", budget="much", min_batch=0)
    for part in ("goal", "--deadline 6h", "--budget 20usd"):
        assert part in str(error.value)


def named(option: Option) -> tuple[str, dict[str, str]]:
    changed: SettingChange = option.changed.change.without_idle(option.setting.base.experiment)
    return option.place.device.name, changed.words()


def named_text(option: Option) -> tuple[str, str]:
    device, words = named(option)
    return device, str(sorted(words.items()))
