"""What a plan advises is tried: typed behind the question, it makes it fit."""

from functools import cache

import pytest

from foretune import catalog
from foretune.catalog.number_formats import multiplies
from foretune.choices.experiment import Experiment
from foretune.choices.step_form import StepForm
from foretune.core.units import GIB
from foretune.core.values.plan import Plan, Remedy
from foretune.core.values.step_trace import StepTrace
from foretune.planner.asking import PlanRequest, asked_of
from foretune.planner.host_memory import budget_named
from foretune.planner.knobs import larger_batches
from foretune.planner.overheads import usable_bytes
from foretune.planner.sizing import StepSize, size_of
from foretune.planner.traces import Traces, is_at_hand
from foretune.reports.remedy_words import cost_text
from foretune.trace.shipped import geometries
from tests.planner.asked_plans import plan, plans, with_remedy

KEPT = "levers.gradient_checkpointing=0"
# The question, the device, and the kinds of remedy in their order.
REFUSED: tuple[tuple[str, tuple[str, ...], str, tuple[str, ...]], ...] = (
    ("sd3-medium", (KEPT, "train.batch_size=8"), "l4", ("recompute",)),
    ("sd3.5-large", (KEPT, "train.batch_size=4"), "h100-sxm", ("recompute",)),
    ("flux.1-dev", (KEPT,), "rtx-5090", ("recompute",)),
    ("flux.1-dev", (), "rtx-4090", ("quantised base", "host memory")),
    (
        "flux.1-dev",
        (),
        "rtx-3060",
        ("quantised base", "quantised base", "host memory", "quantised base, tight", "smaller input"),
    ),
    ("sdxl-unet", ("method.kind=full",), "rtx-4090", ("lighter optimizer", "host memory", "adapter")),
    ("flux.1-dev", ("method.kind=full",), "l40s", ("lighter optimizer", "adapter")),
    ("wan2.1-t2v-14b", (), "rtx-4090", ("host memory", "smaller input")),
    (
        "flux.1-dev",
        ("method.kind=full", "parallel.devices=8", "train.gradient_accumulation=1"),
        "h100-sxm",
        ("lighter optimizer", "recompute", "host memory", "adapter"),
    ),
)


@cache
def advised(target: str, *overrides: str, on: str) -> Plan:
    """A plan with its advice. It takes seconds, and several tests look at the same one."""
    return plan(target, *overrides, on=on)


def kinds(found: Plan) -> tuple[str, ...]:
    return tuple(
        remedy.kind if remedy.verdict == "fits" else f"{remedy.kind}, {remedy.verdict}" for remedy in found.remedies
    )


@pytest.mark.takes_turns
@pytest.mark.parametrize(("target", "overrides", "device", "expected"), REFUSED)
def test_remedies_make_it_fit_when_they_are_typed(
    target: str, overrides: tuple[str, ...], device: str, expected: tuple[str, ...]
) -> None:
    """By the time that each costs: what fits before what is tight, what changes the training last."""
    found = advised(target, *overrides, on=device)
    assert found.verdict != "fits"
    assert kinds(found) == expected
    for remedy in found.remedies:
        changed = with_remedy(target, *overrides, on=device, remedy=remedy)
        assert changed.verdict == remedy.verdict
        assert changed.process_bytes == remedy.process_bytes
        assert found.process_bytes - changed.process_bytes == remedy.saves_bytes > 0
    assert found.smallest_device is not None


def test_a_quantised_base_that_only_a_desktop_makes_tight_is_offered() -> None:
    """Owners of a 12 GB card can close their programs; a card in a server has no desktop."""
    tight = next(remedy for remedy in advised("flux.1-dev", on="rtx-3060").remedies if remedy.verdict == "tight")
    assert tight.settings == {"quantize.denoiser": "nf4", "quantize.text_encoders": "int8"}
    assert tight.moves_bytes == 0
    assert tight.process_bytes is not None
    assert tight.process_bytes < advised("flux.1-dev", on="rtx-3060").usable_bytes
    assert "fits if no desktop uses the card" in cost_text(tight)
    in_a_server = advised("flux.1-dev", on="12GiB").remedies
    assert [remedy.verdict for remedy in in_a_server] == ["fits"] * len(in_a_server) != []


def test_a_small_card_is_offered_a_coarse_base_with_few_swapped_blocks_and_a_fine_one_with_many() -> None:
    """One guide for 12 GB takes nf4, another 8 bits with block swap: which one is better, its owner decides."""
    found = [one for one in advised("flux.1-dev", on="rtx-3060").remedies if "levers.block_swap" in one.settings]
    swapped = {one.settings.get("quantize.denoiser"): int(one.settings["levers.block_swap"]) for one in found}
    assert 0 < swapped["nf4"] < swapped["int8"] / 3
    assert all(one.verdict == "fits" for one in found)
    # A clip's activations fill the card: nf4 would swap nearly as many blocks, so that it gains nothing.
    video = plan("wan2.1-t2v-14b", "data.resolution=512x512", "data.num_frames=81", on="rtx-4090").remedies
    assert {one.settings.get("quantize.denoiser") for one in video} == {"int8", None}


def test_little_host_memory_leaves_few_blocks_to_swap_or_none() -> None:
    """What the host cannot hold is not offered, not even where it would be tight on the device."""
    some = plan("flux.1-dev", on="rtx-3060", host=budget_named("12GiB")).remedies
    # More blocks of an int8 base would fit on the device, but not on the host.
    swaps = [(remedy.settings["quantize.denoiser"], remedy.settings.get("levers.block_swap")) for remedy in some[:3]]
    assert swaps == [("nf4", "8"), ("int8", "33"), ("nf4", None)]
    assert [remedy.verdict for remedy in some[:3]] == ["fits", "fits", "tight"]
    assert all(remedy.host_verdict != "does not fit" for remedy in some)
    # Pages of weight files can be dropped, so that what is not pinned is tight at worst.
    less = plan("flux.1-dev", on="rtx-3060", host=budget_named("8GiB")).remedies
    assert [remedy.settings.get("levers.block_swap") for remedy in less] == ["8", None, None]
    assert {remedy.host_verdict for remedy in less} == {"tight"}


def one_of(found: Plan, kind: str) -> Remedy:
    return next(remedy for remedy in found.remedies if remedy.kind == kind)


def test_devices_that_are_asked_about_together_get_the_same_advice_as_alone() -> None:
    """They share what was found out about settings."""
    names = ("rtx-4090", "rtx-3060", "rtx-3080-10gb")
    together = plans("flux.1-dev", on=[catalog.device(name) for name in names])
    assert [found.remedies for found in together] == [advised("flux.1-dev", on=name).remedies for name in names]


def test_an_overview_has_the_first_of_the_menu() -> None:
    menu = advised("flux.1-dev", on="rtx-3060")
    overview = plan("flux.1-dev", on="rtx-3060", advice="first")
    assert overview.remedies == menu.remedies[:1]
    assert overview.smallest_device == menu.smallest_device


def test_as_few_blocks_are_swapped_as_make_it_fit() -> None:
    remedy = one_of(advised("flux.1-dev", on="rtx-4090"), "host memory")
    assert remedy.settings.keys() == {"levers.block_swap"}
    number = int(remedy.settings["levers.block_swap"])
    assert 0 < number < 28
    fewer = plan("flux.1-dev", f"levers.block_swap={number - 1}", on="rtx-4090", advice="none")
    assert fewer.verdict != "fits"


def test_a_quantised_base_comes_before_traffic() -> None:
    first, second = advised("flux.1-dev", on="rtx-4090").remedies
    assert (first.settings, first.moves_bytes, first.changes_the_result) == ({"quantize.denoiser": "int8"}, 0, True)
    assert second.moves_bytes > 0
    assert second.least_transfer_s is not None
    assert not second.changes_the_result


def test_full_fine_tuning_gets_a_lighter_optimizer_before_another_method() -> None:
    first = advised("sdxl-unet", "method.kind=full", on="rtx-4090").remedies[0]
    assert first.settings["train.weight_dtype"] == "bf16"
    assert first.settings["optimizer.kind"] in ("adamw", "adamw8bit", "adafactor")
    assert first.changes_the_result


def test_videos_get_fewer_frames_of_a_legal_length() -> None:
    remedy = one_of(advised("wan2.1-t2v-14b", on="rtx-4090"), "smaller input")
    assert int(remedy.settings["data.num_frames"]) % 4 == 1
    assert 1 < int(remedy.settings["data.num_frames"]) < 81


def test_a_cache_that_does_not_fit_is_in_every_remedy() -> None:
    """T5 in bf16 alone takes more than a card of 12 GB surely gives."""
    found = advised("flux.1-dev", on="rtx-3060")
    assert found.remedies
    assert all(remedy.settings["quantize.text_encoders"] == "int8" for remedy in found.remedies)
    assert all(remedy.changes_the_result for remedy in found.remedies)


def test_validation_does_not_decide_the_verdict_and_gets_settings_of_its_own() -> None:
    found = advised("sd3.5-large", on="l4")
    assert found.verdict == "fits"
    assert found.validation is not None
    assert found.validation.verdict != "fits"
    assert found.validation.settings == {"levers.vae_tiling": "true"}
    tiled = plan("sd3.5-large", "levers.vae_tiling=true", on="l4", advice="none")
    assert tiled.validation is not None
    assert tiled.validation.verdict == "fits"
    assert tiled.process_bytes == found.process_bytes, "a training step does not decode"


def test_memory_that_is_left_is_used_by_what_fits() -> None:
    found = advised("sd3-medium", on="l4")
    assert found.verdict == "fits"
    assert {remedy.kind for remedy in found.headroom} == {"less checkpointing", "larger batch"}
    for remedy in found.headroom:
        assert with_remedy("sd3-medium", on="l4", remedy=remedy).verdict == "fits"
    less = next(remedy for remedy in found.headroom if remedy.kind == "less checkpointing")
    assert less.extra_flops_share < 0


def test_the_same_result_has_the_same_number_of_samples_in_a_step() -> None:
    found = advised("sd3-medium", KEPT, "train.batch_size=8", "train.gradient_accumulation=3", on="l4")
    settings = found.remedies[0].settings
    assert int(settings["train.batch_size"]) * int(settings["train.gradient_accumulation"]) == 24


def test_what_computes_less_comes_first() -> None:
    """A smaller pass costs no computation, so blocks are computed again only where that is not enough."""
    found = advised("sd3-medium", KEPT, "train.batch_size=8", on="l4")
    assert found.remedies[0].extra_flops_share == 0
    assert "levers.gradient_checkpointing" not in found.remedies[0].settings
    only_way = advised("flux.1-dev", KEPT, on="rtx-5090").remedies[0]
    assert only_way.settings.keys() == {"levers.gradient_checkpointing"}
    assert 0.2 < only_way.extra_flops_share < 0.5


def test_computing_again_costs_no_more_than_the_forward_pass() -> None:
    """A forward pass is at least a third of a step without computing again."""
    only_way = advised("flux.1-dev", KEPT, on="rtx-5090").remedies[0]
    assert only_way.extra_flops_share <= 0.5


def test_caches_are_proposed_where_they_are_off() -> None:
    live = ("levers.cache_latents=false", "levers.cache_text=false")
    found = advised("sd3-medium", *live, on="rtx-3060")
    assert found.verdict == "does not fit"
    best = advised("sd3-medium", *live, on="t4")
    assert best.remedies[0].settings["levers.cache_text"] == "true"
    assert not best.remedies[0].changes_the_result


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("target", "overrides", "device"),
    [
        ("flux.1-dev", ("method.kind=full",), "l4"),
        ("cogvideox-2b", (KEPT,), "rtx-4090"),
        ("flux.1-dev", (KEPT,), "rtx-3060"),
        ("qwen-image", (), "rtx-4080"),
    ],
)
def test_the_smallest_device_is_the_smallest(target: str, overrides: tuple[str, ...], device: str) -> None:
    found = advised(target, *overrides, on=device)
    assert found.smallest_device is not None
    # A card without bf16 is not what to buy for it.
    able = [d for d in catalog.devices().values() if d.kind == "cuda" and multiplies(d, "bf16") is not False]
    ordered = sorted(able, key=lambda d: (usable_bytes(d), d.name))
    names = [d.name for d in ordered]
    place = names.index(found.smallest_device)
    assert plan(target, *overrides, on=found.smallest_device, advice="none").verdict == "fits"
    smaller = [
        plan(target, *overrides, on=[other], advice="none").verdict for other in ordered[max(0, place - 3) : place]
    ]
    assert smaller
    assert "fits" not in smaller


def test_where_it_fits_nothing_has_to_be_done() -> None:
    found = advised("sd3-medium", on="h100-sxm")
    assert (found.verdict, found.remedies, found.smallest_device) == ("fits", (), None)


def test_remedies_may_be_left_out() -> None:
    found = plan("sd3-medium", KEPT, "train.batch_size=8", on="l4", advice="none")
    assert found.verdict == "does not fit"
    assert found.remedies == ()


def test_traffic_is_what_the_changed_plan_says() -> None:
    remedy = one_of(advised("flux.1-dev", on="rtx-4090"), "host memory")
    assert remedy.extra_flops_share == 0
    changed = with_remedy("flux.1-dev", on="rtx-4090", remedy=remedy)
    assert changed.transfers is not None
    assert remedy.moves_bytes == changed.transfers.to_host_bytes + changed.transfers.to_device_bytes > 0
    assert remedy.least_transfer_s == changed.transfers.least_s


def test_a_host_that_is_the_device_is_not_asked_to_hold_more() -> None:
    for device in ("m4-max-40", "laptop-cpu-8core"):
        found = advised("flux.1-dev", on=device)
        words = " ".join(key for remedy in found.remedies for key in remedy.settings)
        assert "swapped" not in words
        assert "host" not in words


def test_a_form_that_nobody_recorded_is_not_at_hand() -> None:
    """So it is not proposed, rather than recorded for half a minute, or a reason to fail."""
    geometry = geometries()["flux.1-dev"]
    asked = {
        "model": "flux.1-dev",
        "method": {"kind": "lora", "targets": ["to_q", "proj_out"]},
        "data": {"kind": "shapes"},
        "train": {"steps": 1},
        "levers": {"gradient_checkpointing": 1.0},
        "quantize": {"denoiser": "nf4"},
    }
    unknown = Experiment.model_validate(asked)
    shipped = Experiment.model_validate({**asked, "method": {"kind": "lora"}, "quantize": {}})
    size = size_of(unknown, geometry)

    def live(form: StepForm, size: StepSize) -> StepTrace:
        raise AssertionError(f"{form} was recorded for {size}")

    for traces in (Traces(), Traces(live)):
        assert is_at_hand(traces, shipped, size, geometry)
        assert not is_at_hand(traces, unknown, size, geometry)
    assert not is_at_hand(Traces(live, always_live=True), unknown, size, geometry)


def test_settings_that_the_host_has_no_memory_for_are_not_offered() -> None:
    """The optimizer's states of FLUX take 204 GiB of host memory: an offer on a host of 512 GiB, none on one of 64."""
    offered = {
        budget: [
            remedy
            for remedy in plan("flux.1-dev", "method.kind=full", on="80GiB", host=budget_named(budget)).remedies
            if "levers.optimizer_offload" in remedy.settings
        ]
        for budget in ("512GiB", "64GiB")
    }
    assert offered["64GiB"] == []
    (remedy,) = offered["512GiB"]
    assert remedy.host_verdict == "fits"
    assert remedy.host_bytes is not None
    assert 180 * GIB < remedy.host_bytes < 230 * GIB


def test_a_video_that_needs_both_gets_a_smaller_and_shorter_one() -> None:
    (smaller, *_) = plan("hunyuanvideo", on="24GiB").remedies
    assert {"data.resolution", "data.num_frames"} <= smaller.settings.keys()
    assert smaller.verdict == "fits"


def test_a_model_that_is_too_large_for_full_fine_tuning_gets_an_adapter_with_block_swap() -> None:
    remedies = plan("flux.1-dev", "method.kind=full", on="rtx-3060").remedies
    assert any(remedy.settings.get("method.kind") == "lora" and remedy.verdict == "fits" for remedy in remedies)


def test_a_larger_batch_is_not_larger_than_the_data() -> None:
    target = {"model": "ddpm-cifar10-32", "data": {"kind": "shapes", "num_samples": 40}, "train": {"steps": 9}}
    experiment = asked_of(PlanRequest(target=target)).experiment
    batches = [change.settings["train.batch_size"] for change in larger_batches(experiment)]
    assert batches
    assert max(batches) <= 40
