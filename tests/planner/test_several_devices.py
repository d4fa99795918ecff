"""Plans of several devices: their links, one run or several, spot instances, and cards of different kinds."""

import pytest

from foretune.core.errors import UserError
from foretune.core.values.plan import Plan
from foretune.core.values.plan_time import RunOrRuns
from foretune.planner.asking import devices_named
from foretune.planner.timing.spot import SpotTerms
from foretune.planner.timing.stated_links import links_named
from foretune.planner.timing.terms import Terms
from foretune.reports.terminal.several_devices import run_or_runs_text, several_devices_lines, spot_lines
from tests.planner.asked_plans import plan

MODEL = "sd3-medium"
SHARDED = ("method.kind=full", "parallel.sharding=full", "parallel.devices=2")


def step_s(found: Plan) -> float:
    assert found.time is not None, found.no_time
    return found.time.step_s


def total_s(found: Plan) -> float:
    assert found.cost is not None, found.no_cost
    return found.cost.total_s


def compared(found: Plan) -> RunOrRuns:
    assert found.run_or_runs is not None
    return found.run_or_runs


def test_a_slower_link_takes_longer_and_is_named() -> None:
    usual, slow = (
        plan(MODEL, *SHARDED, on="h100-sxm", advice="none", terms=Terms(links=links_named(texts)))
        for texts in ([], ["pcie=3.0x4"])
    )
    assert step_s(slow) > step_s(usual)
    assert "NVLink4" in usual.connection[0]
    assert "PCIe 3.0 x4 (as given" in slow.connection[0]
    assert slow.process_bytes == usual.process_bytes
    assert total_s(slow) > total_s(usual)


def test_one_device_has_no_links_and_no_comparison() -> None:
    found = plan(MODEL, on="h100-sxm", advice="none", terms=Terms(links=links_named(["400Gb/s"])))
    assert found.connection == ()
    assert found.run_or_runs is None
    assert list(several_devices_lines(found)) == []


def test_two_devices_or_two_runs_are_two_plans() -> None:
    """The run on one device is the plan of the same training there: as many samples in a step."""
    both = plan(MODEL, "parallel.devices=2", "train.gradient_accumulation=3", on="l4", advice="none")
    alone = plan(MODEL, "train.gradient_accumulation=6", on="l4", advice="none")
    answer = compared(both)
    assert answer.settings == {"train.gradient_accumulation": "6"}
    assert (answer.samples_per_step, answer.samples_as_is) == (6, 3)
    assert answer.one_run_s == total_s(both)
    assert answer.single_s == pytest.approx(total_s(alone))
    assert alone.cost is not None
    assert answer.single_usd == pytest.approx(alone.cost.usd)
    assert answer.single_fits
    assert 1 < answer.speedup < 2
    assert answer.results_of_runs == pytest.approx(2 * answer.one_run_s / answer.single_s)
    text = run_or_runs_text(answer)
    assert "train.gradient_accumulation=6 (so that a step also has 6 samples, not 3)" in text
    assert f"{answer.speedup:.1f} times as soon" in text


def test_a_run_that_does_not_fit_on_one_device_is_not_offered() -> None:
    found = plan("flux.1-dev", "method.kind=full", "parallel.devices=8", "parallel.sharding=full", on="h100-sxm")
    answer = compared(found)
    assert not answer.single_fits
    assert "does not fit on one device" in run_or_runs_text(answer)
    assert "parallel.devices=1" in run_or_runs_text(answer)


def test_the_reason_is_what_costs_most() -> None:
    slow = Terms(links=links_named(["pcie=1.0x1"]))
    waiting = plan(MODEL, *SHARDED, "train.steps=100000", on="h100-sxm", advice="none", terms=slow)
    assert "of a step waits for communication" in (compared(waiting).reason or "")
    short = plan(MODEL, "parallel.devices=8", "train.steps=50", on="h100-sxm", advice="none")
    assert "set up, downloads and saves" in (compared(short).reason or "")


def test_spot_stands_beside_the_price_on_demand() -> None:
    terms = Terms(prices={"l4": 0.1}, spot=SpotTerms(interruptions_per_day=12.0))
    on_demand, spot = plan(MODEL, advice="none"), plan(MODEL, advice="none", terms=terms)
    assert on_demand.cost is not None
    assert spot.cost is not None
    assert spot.cost.usd == on_demand.cost.usd, "the catalogue's price"
    found = spot.cost.spot
    assert found is not None
    assert found.expected_s is not None
    assert found.best_expected_s is not None
    assert found.expected_s > found.best_expected_s > on_demand.cost.total_s
    assert found.usd is not None
    assert found.usd_per_hour == 0.1
    assert found.usd < found.expected_s / 3600 * 0.1, "waiting is not paid"
    first, second = spot_lines(spot.cost)
    assert "at $0.10/h with save.every=250" in first
    assert f"save.every={found.best_save_every}" in second
    assert any("12 spot interruptions per day" in text for text in spot.cost.assumptions)


def test_any_machine_interrupts_all_of_them() -> None:
    terms = Terms(prices={"h100-sxm": 1.0}, spot=SpotTerms(interruptions_per_day=1.0))
    costs = [
        plan(MODEL, f"parallel.devices={count}", "train.steps=2000", on="h100-sxm", advice="none", terms=terms).cost
        for count in (8, 16)
    ]
    spots = [cost.spot for cost in costs if cost is not None and cost.spot is not None]
    assert [spot.num_machines for spot in spots] == [1, 2]
    one, two = (spot.interruptions or 0.0 for spot in spots)
    assert two > 1.8 * one


def test_different_cards_wait_for_the_slowest_and_fit_the_smallest() -> None:
    typed = ("parallel.devices=2", "quantize.denoiser=int8")
    slots = Terms(links=links_named(["pcie=4.0x16"]))
    mixed = plan(MODEL, *typed, on="rtx-3090+rtx-4090", advice="none")
    old, new = (plan(MODEL, *typed, on=card, advice="none", terms=slots) for card in ("rtx-3090", "rtx-4090"))
    assert step_s(mixed) == pytest.approx(max(step_s(old), step_s(new)))
    assert mixed.usable_bytes == min(old.usable_bytes, new.usable_bytes)
    assert mixed.process_bytes == new.process_bytes, "the RTX 4090 has a little less"
    prices = [found.cost.usd_per_hour or 0.0 for found in (old, new) if found.cost is not None]
    assert mixed.cost is not None
    assert mixed.cost.usd_per_hour == pytest.approx(sum(prices) / 2)
    assert mixed.run_or_runs is None
    text = "; ".join(mixed.connection)
    assert "the slowest of their slots" in text
    assert "each step waits for rtx-3090" in text
    assert "idle: rtx-4090 for " in text
    assert "memory is judged on rtx-4090" in text


@pytest.mark.parametrize(
    ("typed", "on", "says"),
    [
        ((), "rtx-3090+rtx-4090", "parallel.devices=2"),
        (("parallel.devices=2",), "l4+l4", "--on l4 parallel.devices=2"),
        (("parallel.devices=2",), "l4+mi300x", "--on l4,mi300x"),
        (("parallel.devices=2",), "mi210+mi250x", "several devices"),
    ],
)
def test_cards_that_do_not_train_together_are_refused(typed: tuple[str, ...], on: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        plan(MODEL, *typed, on=on)


def test_settings_of_a_card_stay_its_own() -> None:
    (mixed,) = devices_named("rtx-3090:limit=12GiB+rtx-4090")
    assert mixed.name == "rtx-3090:limit=12GiB+rtx-4090"
    found = plan(MODEL, "parallel.devices=2", on=[mixed], advice="none")
    assert found.usable_bytes == 12 * 2**30
