"""What a plan proposes is tried: typed behind the question, it makes it fit."""

import pytest

from foretune import catalog
from foretune.choices.experiment import Experiment
from foretune.choices.step_form import StepForm
from foretune.core.values.step_trace import StepTrace
from foretune.plan.overheads import usable_bytes
from foretune.plan.sizing import StepSize, size_of
from foretune.plan.traces import Traces, is_at_hand
from foretune.trace.shipped import geometries
from tests.plan.asked_plans import plan, with_remedy

KEPT = "levers.gradient_checkpointing=0"
# The question, the device, and whether there is a way that leaves the result as it is.
REFUSED: tuple[tuple[str, tuple[str, ...], str, bool], ...] = (
    ("sd3-medium", (KEPT, "train.batch_size=8"), "l4", True),
    ("sd3-medium", ("method.kind=full", "train.weights=bf16", "optimizer.compensation=kahan"), "l4", True),
    ("sd3.5-large", (KEPT, "train.batch_size=4"), "l4", True),
    ("sd3.5-large", (KEPT, "train.batch_size=4"), "h100-sxm", True),
    ("flux.1-dev", (KEPT,), "rtx-5090", True),
    ("cogvideox-2b", (KEPT,), "rtx-4090", False),
    ("flux.1-dev", (), "rtx-4090", True),
    ("flux.1-dev", (), "rtx-3060", False),
)


@pytest.mark.parametrize(("target", "overrides", "device", "same_result"), REFUSED)
def test_remedies_make_it_fit_when_they_are_typed(
    target: str, overrides: tuple[str, ...], device: str, same_result: bool
) -> None:
    found = plan(target, *overrides, on=device)
    assert found.verdict != "fits"
    assert found.remedies
    assert found.remedies[0].changes_the_result is not same_result
    for remedy in found.remedies:
        mended = with_remedy(target, *overrides, on=device, remedy=remedy)
        assert mended.verdict == remedy.verdict == "fits"
        assert found.process_bytes - mended.process_bytes == remedy.saves_bytes > 0
    assert (found.smallest_device is None) is same_result


def test_the_same_result_has_the_same_number_of_samples_in_a_step() -> None:
    found = plan("sd3-medium", KEPT, "train.batch_size=8", "train.gradient_accumulation=3", on="l4")
    settings = found.remedies[0].settings
    assert int(settings["train.batch_size"]) * int(settings["train.gradient_accumulation"]) == 24


def test_what_computes_less_comes_first() -> None:
    """A smaller pass costs no computation, so blocks are computed again only where that is not enough."""
    found = plan("sd3-medium", KEPT, "train.batch_size=8", on="l4")
    assert found.remedies[0].extra_flops_share == 0
    assert "levers.gradient_checkpointing" not in found.remedies[0].settings
    (only_way,) = plan("flux.1-dev", KEPT, on="rtx-5090").remedies
    assert only_way.settings.keys() == {"levers.gradient_checkpointing"}
    assert 0.2 < only_way.extra_flops_share < 0.5


def test_computing_again_costs_no_more_than_the_forward_pass() -> None:
    """A forward pass is at least a third of a step without computing again."""
    (only_way,) = plan("flux.1-dev", KEPT, on="rtx-5090").remedies
    assert only_way.extra_flops_share <= 0.5


def test_caches_are_proposed_where_they_are_off() -> None:
    live = ("levers.cache_latents=false", "levers.cache_text=false")
    found = plan("sd3-medium", *live, on="rtx-3060")
    assert found.verdict == "does not fit"
    best = plan("sd3-medium", *live, on="t4")
    assert best.remedies[0].settings["levers.cache_text"] == "true"
    assert not best.remedies[0].changes_the_result


@pytest.mark.parametrize(
    ("target", "overrides", "device"),
    [
        ("flux.1-dev", ("method.kind=full",), "l4"),
        ("cogvideox-2b", (KEPT,), "rtx-4090"),
        ("flux.1-dev", (KEPT,), "rtx-3060"),
    ],
)
def test_the_smallest_device_is_the_smallest(target: str, overrides: tuple[str, ...], device: str) -> None:
    found = plan(target, *overrides, on=device)
    assert found.smallest_device is not None
    ordered = [d for d in sorted(catalog.devices().values(), key=usable_bytes) if d.kind != "cpu"]
    names = [d.name for d in ordered]
    place = names.index(found.smallest_device)
    assert plan(target, *overrides, on=found.smallest_device, has_advice=False).verdict == "fits"
    smaller = [
        plan(target, *overrides, on=[other], has_advice=False).verdict for other in ordered[max(0, place - 3) : place]
    ]
    assert smaller
    assert "fits" not in smaller


def test_where_it_fits_nothing_is_proposed() -> None:
    found = plan("sd3-medium", on="h100-sxm")
    assert (found.verdict, found.remedies, found.smallest_device) == ("fits", (), None)


def test_where_nothing_helps_nothing_is_proposed() -> None:
    found = plan("hunyuanvideo", on="rtx-3060")
    assert found.verdict == "does not fit"
    assert found.remedies == ()
    assert found.smallest_device is not None


def test_remedies_may_be_left_out() -> None:
    found = plan("sd3-medium", KEPT, "train.batch_size=8", on="l4", has_advice=False)
    assert found.verdict == "does not fit"
    assert found.remedies == ()


def test_what_moves_comes_after_what_computes_and_says_how_much() -> None:
    (remedy,) = plan("flux.1-dev", on="rtx-4090").remedies
    assert remedy.settings.keys() == {"levers.swapped_blocks"}
    assert remedy.extra_flops_share == 0
    mended = with_remedy("flux.1-dev", on="rtx-4090", remedy=remedy)
    assert mended.transfers is not None
    assert remedy.moves_bytes == mended.transfers.to_host_bytes + mended.transfers.to_device_bytes > 0


def test_a_host_that_is_the_device_is_not_asked_to_hold_more() -> None:
    for device in ("m4-max-40", "laptop-cpu-8core"):
        found = plan("flux.1-dev", on=device)
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
