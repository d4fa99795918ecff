"""A search finds what trying everything finds, and looks at little of it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from foretune.catalog.devices import Device
from foretune.core.errors import UserError
from foretune.planner.asking import PlanRequest, asked_of, devices_named, find_subject
from foretune.planner.knobs import SettingChange
from foretune.planner.planning import Footprint, footprint, plan_on
from foretune.planner.search.asking import search_question, sought_of
from foretune.planner.search.best import Goal, PlanLimits, rank
from foretune.planner.search.options import Option
from foretune.planner.search.searching import Answer, options_of, search
from foretune.planner.search.sought import Sought
from foretune.planner.search.space import dividing, space_of
from foretune.planner.sizing import size_of
from foretune.planner.timing.spot import SpotTerms
from foretune.planner.timing.terms import Terms
from foretune.planner.traces import Traces

CARDS = "rtx-3060,l4,rtx-4090,h100-sxm"
SMALL = ("train.gradient_accumulation=2", "levers.block_swap=0", "data.resolution=2048")
# Few enough to replay all of them.
TYPED = frozenset({"levers.block_swap", "quantize.denoiser"})
UNLIMITED = PlanLimits()


@cache
def base(model: str, *overrides: str) -> Footprint:
    asked = asked_of(PlanRequest(target=model, overrides=overrides))
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


SEVERAL = ("train.gradient_accumulation=4", "levers.block_swap=0", "data.resolution=2048")
COUNTS = (1, 2, 4, 16)
NETWORKED = "rtx-4090,h100-sxm"


def several(goal: Goal = "cheapest", limits: PlanLimits = UNLIMITED, counts: tuple[int, ...] = COUNTS) -> Sought:
    typed = TYPED | {"levers.gradient_checkpointing"}
    return Sought(goal=goal, limits=limits, typed=typed, counts=counts)


@cache
def tried_on_several() -> list[Option]:
    """Every option on up to four devices that fits, all replayed."""
    options, _ = options_of(base("sd3-medium", *SEVERAL), cards(NETWORKED), several())
    engines = {(one.setting.num_devices, one.setting.experiment.parallel.sharding) for one in options}
    assert engines == {(1, "none"), (2, "none"), (2, "full"), (4, "none"), (4, "full")}
    assert {one.setting.experiment.samples_per_step() for one in options} == {4}
    fitting = [option for option in options if option.fits]
    assert len(fitting) >= 10
    return fitting


@pytest.mark.parametrize("goal", ["cheapest", "fastest", "smallest"])
@pytest.mark.parametrize("is_limited", [False, True])
def test_the_answer_on_several_devices_is_that_of_brute_force(goal: Goal, is_limited: bool) -> None:
    limits = limits_between(tried_on_several()) if is_limited else UNLIMITED
    ordered = by_brute_force(tried_on_several(), goal, limits)
    answer = search(base("sd3-medium", *SEVERAL), cards(NETWORKED), several(goal, limits))
    assert (answer.best.plan.device, dict(answer.best.words)) == named(ordered[0])
    assert answer.best.plan.world_size == ordered[0].setting.num_devices
    assert answer.skipped_counts == (16,)
    if goal == "fastest" and not is_limited:
        assert answer.best.plan.world_size == 4
        assert answer.run_or_runs == answer.best.plan.run_or_runs is not None


def test_the_totals_on_several_devices_are_those_of_their_plans() -> None:
    """Price, communication and the memory of one of the devices included."""
    options = tried_on_several()
    for option in (options[0], options[len(options) // 2], options[-1]):
        plan = plan_on(option.changed.footprint, option.place.device)
        assert plan.time is not None
        assert plan.cost is not None
        assert plan.time.step_s == pytest.approx(option.seconds.step_s)
        assert plan.cost.total_s == pytest.approx(option.totals.total_s)
        assert plan.cost.usd == pytest.approx(option.totals.usd)
        assert option.least.total_s <= option.totals.total_s


def test_groups_of_hybrid_sharding_are_those_of_a_machine() -> None:
    experiment = base("sd3-medium", "train.gradient_accumulation=32").experiment
    engines = {
        (change.settings["parallel.sharding"], change.settings["parallel.shard_devices"])
        for change in space_of(experiment, 24, counts=(16,)).changes()
    }
    assert engines == {("none", None), ("full", None), ("hybrid", 8)}
    assert dividing((1, 2, 3, 8, 64), 32) == (1, 2, 8)
    assert dividing((1, 2, 8), 32, min_batch=8) == (1, 2)


def test_typed_devices_stay() -> None:
    wanted = PlanRequest(target="sd3-medium", overrides=("parallel.devices=2", "levers.gradient_checkpointing=1"))
    _, answer = search_question(wanted, sought_of(wanted, goal="cheapest"), cards("h100-sxm"), None)
    assert answer.counts == (2,)
    assert answer.num_samples == 8
    assert answer.best.plan.world_size == 2
    more = replace(wanted, overrides=("train.gradient_accumulation=8", "levers.gradient_checkpointing=1"))
    _, answer = search_question(more, sought_of(more, goal="fastest"), cards("h100-sxm"), None)
    assert answer.counts == (1, 2, 4, 8)
    assert answer.num_samples == 8
    assert answer.best.plan.world_size == 8
    with pytest.raises(UserError, match="Leave out one of the two"):
        sought_of(wanted, goal="cheapest", num_devices="1,2")
    for wrong in ("two", "0", "1,,2", "-1"):
        with pytest.raises(UserError, match="--devices 1,2,4,8"):
            sought_of(replace(wanted, overrides=()), goal="cheapest", num_devices=wrong)


def test_spot_is_searched_by_its_expected_price() -> None:
    """With a checkpoint interval of its own; devices without a spot price are left out."""
    terms = Terms(prices={"h100-sxm": 1.0}, spot=SpotTerms(interruptions_per_day=24.0))
    sought = Sought(goal="cheapest", typed=TYPED, terms=terms)
    answer = search(base("sd3-medium", *SMALL), cards("rtx-4090,h100-sxm"), sought)
    cost = answer.best.plan.cost
    assert cost is not None
    assert cost.spot is not None
    assert answer.best.settings["save.every"] == cost.spot.save_every == cost.spot.best_save_every
    assert answer.best.usd == cost.spot.usd != cost.usd
    assert answer.best.total_s == cost.spot.expected_s
    assert cost.spot.expected_s is not None
    assert cost.spot.expected_s > cost.total_s
    assert any("spot price" in reason for reason in answer.left_out)


def test_a_plot_has_a_sample_of_the_options() -> None:
    answer = search(base("sd3-medium", *SMALL), cards(), Sought(goal="cheapest", typed=TYPED), draws=True)
    front = {(one.plan.device, one.total_s, one.usd) for one in answer.front}
    assert front <= {(one.device, one.total_s, one.usd) for one in answer.cloud}
    assert len(answer.cloud) > len(answer.front)


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
        ("l4", PlanLimits(deadline_s=60), "The fastest is l4: .* for .*Raise --deadline"),
        ("l4", PlanLimits(budget_usd=0.01), "The cheapest is l4: .* for .*Raise --budget"),
        ("l4,h100-sxm", PlanLimits(deadline_s=2400, budget_usd=0.01), "The cheapest within 40 min 00 s is h100-sxm"),
        ("rtx-3060", UNLIMITED, "--price"),
        ("4GiB", UNLIMITED, "not known"),
    ],
)
def test_no_answer_says_what_to_change(on: str, limits: PlanLimits, says: str) -> None:
    with pytest.raises(UserError, match=says):
        search(base("sd3-medium"), cards(on), Sought(goal="cheapest", limits=limits))


def test_a_request_is_read_as_a_whole() -> None:
    wanted = PlanRequest(target="sd3-medium", overrides=("train.batch_size=2",))
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
