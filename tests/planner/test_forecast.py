"""Time and cost in plans: they add up, say what they rest on, and are absent where something is not known."""

from dataclasses import replace
from typing import Any

import pytest

from foretune import catalog
from foretune.catalog.devices import Device
from foretune.core.errors import UserError
from foretune.core.values.plan import Plan
from foretune.planner.asking import devices_named
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from foretune.planner.timing.terms import Terms, prices_named
from foretune.reports.terminal.plan_times import job_text, step_text, time_lines
from tests.planner.asked_plans import GIB, plan, plans
from tests.work_counts import work_of

MODEL = "sd3-medium"
CARDS = "rtx-4090,h100-sxm,l4"


def unknown(device: Device) -> DeviceSpeed:
    raise NotKnown(f"the speed of {device.name}")


class Impossible:
    """Computes everything at once."""

    def __init__(self, device: Device) -> None:
        self._real = speed_of(device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def product_s(self, *_: object) -> float:
        return 0.0

    def convolution_s(self, *_: object) -> float:
        return 0.0

    def attention_s(self, *_: object, **__: object) -> float:
        return 0.0

    def bytes_s(self, _: float) -> float:
        return 0.0

    def launch_s(self, **_: object) -> float:
        return 0.0


def check(found: Plan) -> None:
    time, cost = found.time, found.cost
    assert time is not None, found.no_time
    assert cost is not None, found.no_cost
    assert 0 < time.low_s < time.step_s < time.high_s
    assert sum(time.shares.values()) == pytest.approx(1)
    assert time.shares[time.bound_by] == max(time.shares.values())
    for share in (time.model_utilisation, time.hardware_utilisation):
        assert share is None or 0 < share <= 1
    parts = (cost.set_up_s, cost.download_s, cost.caching_s, cost.training_s, cost.validation_s, cost.saves_s)
    assert cost.total_s == pytest.approx(sum(part or 0 for part in parts))
    assert cost.num_steps is not None
    assert cost.training_s == pytest.approx(cost.num_steps * time.step_s)
    assert cost.low_s < cost.total_s < cost.high_s
    if cost.usd_per_hour is not None:
        assert cost.usd == pytest.approx(found.world_size * cost.usd_per_hour * cost.total_s / 3600)


def test_times_and_costs_add_up_on_every_device() -> None:
    found = plans(MODEL, on=CARDS, advice="none")
    for one in found:
        check(one)
        assert Plan.from_json(one.to_json()) == one
    step_s = {one.device: one.time.step_s for one in found if one.time is not None}
    assert step_s["h100-sxm"] < step_s["rtx-4090"] < step_s["l4"]


def test_more_samples_take_longer_and_recomputation_is_not_the_model() -> None:
    one, four, kept = (
        plan(MODEL, f"train.gradient_accumulation={n}", f"levers.gradient_checkpointing={share}", on="l40s").time
        for n, share in ((1, 1), (4, 1), (1, 0))
    )
    assert one is not None
    assert four is not None
    assert kept is not None
    assert 3.5 * one.step_s < four.step_s < 4 * one.step_s
    assert kept.step_s < one.step_s
    assert kept.hardware_flops == pytest.approx(kept.model_flops)
    assert one.hardware_flops > 1.2 * kept.model_flops


def test_what_is_not_known_leaves_no_time_and_says_why() -> None:
    found = plan(MODEL, on="l4", advice="none", terms=Terms(speeds=unknown))
    assert (found.time, found.cost, found.no_time) == (None, None, "the speed of l4")
    assert list(time_lines([found])) == ["No step time, not known: the speed of l4"]
    assert plan(MODEL, "levers.compile=regional", on="l4", advice="none").no_time


def test_several_devices_wait_for_each_other() -> None:
    one, two = (
        plan(MODEL, f"train.gradient_accumulation={4 // n}", f"parallel.devices={n}", on="h100-sxm", advice="none")
        for n in (1, 2)
    )
    check(two)
    assert one.time is not None
    assert two.time is not None
    assert one.cost is not None
    assert two.cost is not None
    assert 0.5 * one.time.step_s < two.time.step_s < one.time.step_s
    assert "communication" in two.time.shares
    assert two.cost.usd_per_hour == one.cost.usd_per_hour
    assert two.cost.usd is not None
    assert one.cost.usd is not None
    assert two.cost.usd > one.cost.usd


def test_nothing_is_faster_than_the_peak() -> None:
    found = plan(MODEL, on="l4", advice="none", terms=Terms(speeds=Impossible))
    assert found.time is None
    assert found.no_time is not None
    assert "above its peak" in found.no_time


def test_a_given_price_comes_before_the_catalogues() -> None:
    terms = Terms(prices=prices_named(("4090=0.5", "rtx-3060=0.1")))
    mine, theirs, owned = plans(MODEL, on="rtx-4090,h100-sxm,rtx-3060:limit=11GiB", advice="none", terms=terms)
    assert mine.cost is not None
    assert theirs.cost is not None
    assert owned.cost is not None
    assert (mine.cost.usd_per_hour, mine.cost.is_price_given, mine.cost.price_source) == (0.5, True, "as given")
    assert theirs.cost.usd_per_hour == catalog.device("h100-sxm").price_usd_per_hour
    assert theirs.cost.price_source.startswith("catalogue, ")
    assert owned.cost.usd_per_hour == 0.1
    unpriced = plan(MODEL, on="rtx-3060", advice="none").cost
    assert unpriced is not None
    assert unpriced.usd is None
    assert "--price" in job_text(unpriced)


@pytest.mark.parametrize("text", ["h100-sxm", "h100-sxm=", "h100-sxm=cheap", "h100-sxm=-1", "h100-sxm=inf", "=2"])
def test_a_wrong_price_says_how_to_write_it(text: str) -> None:
    with pytest.raises(UserError, match=r"--price h100-sxm=2.49|no device"):
        prices_named((text,))


def test_the_length_of_a_job() -> None:
    seconds = plan(
        MODEL, "optimizer.schedule=constant", "train.steps=null", "train.seconds=7200", on="l4", advice="none"
    ).cost
    assert seconds is not None
    assert (seconds.num_steps, seconds.training_s) == (None, 7200)
    epochs = plan(MODEL, "train.steps=null", "train.epochs=3", "data.num_samples=100", on="l4", advice="none").cost
    assert epochs is not None
    assert epochs.num_steps == 3 * 25
    uncounted = ("data.kind=folder", "data.path=./paintings", "train.steps=null", "train.epochs=3")
    found = plan(MODEL, *uncounted, on="l4", advice="none")
    assert found.time is not None
    assert found.cost is None
    assert found.no_cost is not None
    assert "train.steps" in found.no_cost


def test_sentences() -> None:
    found = plan(MODEL, on="rtx-4090", advice="none")
    assert found.time is not None
    assert found.cost is not None
    time = found.time.model_copy(
        update={
            "step_s": 3.1,
            "low_s": 2.4,
            "high_s": 4.0,
            "samples_per_s": 1.29,
            "shares": {"host": 0.22, "bus": 0.78},
        }
    )
    assert step_text(time) == "Step time 3.1 s (2.4 to 4.0 s), 1.29 samples/s; waits for: bus 78 %, host 22 %."
    cost = found.cost.model_copy(
        update={"num_steps": 2000, "total_s": 6600.0, "energy_wh": 800.0, "usd": 0.63, "usd_per_hour": 0.34}
    )
    assert job_text(cost) == "2,000 steps: 1 h 50 min, 0.8 kWh, $0.63 at $0.34/h (catalogue, March 2026)"


def test_remedies_stand_in_the_order_of_what_they_cost() -> None:
    """Copies that are hidden count, too: without them, block swap would come before the quantised base."""
    remedies = plan("flux.1-dev", on="rtx-4090").remedies
    assert {remedy.kind for remedy in remedies} >= {"quantised base", "host memory"}
    costs_s = []
    for remedy in remedies:
        assert remedy.slowdown_s is not None
        assert remedy.hidden_copy_s is not None
        costs_s.append(remedy.slowdown_s + remedy.hidden_copy_s)
    assert costs_s == sorted(costs_s)
    base, swap = (
        next(remedy for remedy in remedies if remedy.kind == kind) for kind in ("quantised base", "host memory")
    )
    assert (base.slowdown_s or 0.0) > (swap.slowdown_s or 0.0) > 0
    assert swap.hidden_copy_share == pytest.approx(0.94, abs=0.02)
    untimed = plan("flux.1-dev", on="rtx-4090", terms=Terms(speeds=unknown)).remedies
    assert [remedy.kind for remedy in untimed] == ["quantised base", "host memory"]
    assert all(remedy.slowdown_s is None for remedy in untimed)


def test_times_take_a_small_part_of_the_work_of_a_plan() -> None:
    """Counted with a device that was asked before: a table of kernels is read once for all plans."""
    plan(MODEL, on="h100-sxm", advice="none")
    without, with_times = (
        work_of(lambda terms=terms: plan(MODEL, on="h100-sxm", advice="none", terms=terms)).num_calls  # type: ignore[misc]
        for terms in (Terms(speeds=unknown), Terms())
    )
    assert with_times < 1.1 * without


def test_a_limit_is_what_a_process_can_use() -> None:
    plain, limited, small = devices_named("rtx-4090,rtx-4090:limit=20GiB,4090:limit=9 GiB")
    found = plans(MODEL, on=[plain, limited, small], advice="none")
    assert [one.usable_bytes for one in found[1:]] == [20 * GIB, 9 * GIB]
    assert [one.device for one in found] == ["rtx-4090", "rtx-4090:limit=20GiB", "rtx-4090:limit=9GiB"]
    assert found[0].process_bytes == found[1].process_bytes
    assert found[0].time == found[1].time
    assert found[0].cost == found[1].cost
    verdicts = [plan("flux.1-dev", "quantize.denoiser=int8", on=[one], advice="none").verdict for one in (plain, small)]
    assert verdicts == ["fits", "does not fit"]


@pytest.mark.parametrize("name", ["laptop-cpu-8core", "m4-max-40", "mi250x", "16GiB", "l4"])
def test_a_limit_holds_for_every_kind_of_device(name: str) -> None:
    (found,) = plans(MODEL, on=f"{name}:limit=7GiB", advice="none")
    assert found.usable_bytes == pytest.approx(7 * GIB, abs=2**21)


def test_a_narrow_link_slows_block_swap_down() -> None:
    swap = ("levers.block_swap=20",)
    plain, narrow = plans(MODEL, *swap, on="h100-sxm:pcie=4.0x16,h100-sxm:pcie=3x4", advice="none")
    assert plain.transfers is not None
    assert narrow.transfers is not None
    assert (narrow.transfers.link, narrow.transfers.gb_per_s) == ("PCIe 3.0 x4", 4.0)
    assert plain.transfers.gb_per_s == 32.0
    assert plain.time is not None
    assert narrow.time is not None
    assert narrow.time.shares["bus"] > plain.time.shares["bus"] > 0
    assert narrow.time.step_s > plain.time.step_s
    (device,) = devices_named("h100-sxm:pcie=3x4")
    assert device.interconnect == catalog.device("h100-sxm").interconnect, "links to other devices stay"


@pytest.mark.parametrize(
    "typed",
    ["l4:limit", "l4:limit=lots", "l4:limit=30GiB", "l4:pcie=9x16", "l4:pcie=4.0x3", "l4:watts=30",
     "l4:limit=9GiB:limit=8GiB", "m4-max-40:pcie=4.0x8"],
)  # fmt: skip
def test_a_wrong_setting_of_a_device_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match=typed.replace(".", r"\.")):
        devices_named(typed)


def test_terms_are_replaced_as_a_whole() -> None:
    assert replace(Terms(), prices={"l4": 1.0}).price_of(catalog.device("l4")).usd == 1.0
