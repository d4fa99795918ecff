"""Steps that are put together from shipped traces: which there are, and that they are what a recording gives."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from foretune import catalog
from foretune.choices.optimizers import OPTIMIZER_SPECS
from foretune.choices.step_form import StepForm
from foretune.core.values.step_trace import StepTrace
from foretune.planner.block_events import CUDA_ROUNDING_BYTES
from foretune.planner.composing.forms import composed_trace, composition_of, is_covered, what_is_missing
from foretune.planner.expansion import expand
from foretune.planner.live_memory import find_peak
from foretune.planner.sizing import StepSize
from foretune.planner.streams import device_events
from foretune.planner.traces import NotTraced, Traces
from foretune.trace.shipped import MARKED, shipped_slugs
from foretune.trace.stamps import sources_hash
from tests.tools.slow_models import SLOW_MODELS
from tools.shipping import make, marked_forms

MOST_APART = 0.005
SIZES = (1, 4096, 256, 16)
SIZE = StepSize(batch_size=1, height_px=512, width_px=512, num_frames=1, num_text_tokens=64, rank=4)
QUANTISED = ("int8", "float8", "nf4", "int8-bnb", "float8-dynamic")
OPTIMIZERS = tuple(kind for kind in OPTIMIZER_SPECS if kind != "adamw")


def form(model: str, method: str, *, is_checkpointed: bool = True, weights: str = "fp32", **others: object) -> StepForm:
    named = tuple(sorted((key.replace("__", "."), value) for key, value in others.items()))
    return StepForm(model=model, method=method, is_checkpointed=is_checkpointed, weights=weights, others=named)  # type: ignore[arg-type]


def peak_bytes(step: StepForm, *, is_recorded: bool) -> int:
    composition = composition_of(step)
    assert composition is not None
    trace = make(step) if is_recorded else composed_trace(composition)
    return find_peak(device_events(expand(trace, SIZES)), CUDA_ROUNDING_BYTES, 0).num_bytes


@pytest.mark.takes_turns
@pytest.mark.parametrize("model", sorted(catalog.denoisers()))
def test_every_optimizer_is_covered_for_every_model(model: str) -> None:
    for method in ("lora", "full"):
        for kind in OPTIMIZERS:
            for is_checkpointed in (True, False):
                assert is_covered(form(model, method, is_checkpointed=is_checkpointed, optimizer__kind=kind))


@pytest.mark.takes_turns
@pytest.mark.parametrize("model", sorted({one.model for one in marked_forms()}))
def test_every_quantised_base_is_covered(model: str) -> None:
    for kind in QUANTISED:
        for is_checkpointed in (True, False):
            step = form(model, "lora", is_checkpointed=is_checkpointed, quantize__denoiser=kind)
            assert is_covered(step), step.slug()


def test_a_composed_step_is_smaller_by_the_bits_that_are_saved() -> None:
    dense, int8, nf4 = (
        form("flux.1-dev", "lora") if kind is None else form("flux.1-dev", "lora", quantize__denoiser=kind)
        for kind in (None, "int8", "nf4")
    )
    peaks = [peak_bytes(step, is_recorded=False) for step in (dense, int8, nf4)]
    assert peaks[0] > 1.4 * peaks[1] > 1.6 * peaks[2]


def test_what_is_not_covered_is_named_with_what_to_run() -> None:
    step = form("flux.1-dev", "lora", levers__channels_last=True, quantize__denoiser="int8")
    assert not is_covered(step)
    assert "levers.channels_last=True" in what_is_missing(step)
    with pytest.raises(NotTraced, match="pip install 'foretune\\[train\\]'"):
        Traces().step(step, SIZE)


def test_kept_blocks_are_named_where_only_those_computed_again_are_covered() -> None:
    kept = form("flux.1-dev", "dora", is_checkpointed=False)
    assert is_covered(form("flux.1-dev", "dora"))
    assert not is_covered(kept)
    assert what_is_missing(kept).startswith("a share of gradient checkpointing below 1 is not covered for flux.1-dev")


@pytest.mark.slow
def test_a_composed_step_is_that_which_is_recorded(
    proof_size: Callable[[int, int], int], report_figure: Callable[[str], None]
) -> None:
    """Others whenever the code that makes steps changes."""
    # In routine runs without those that take minutes.
    models = sorted(set(catalog.denoisers()).difference(() if proof_size(1, 0) else SLOW_MODELS))
    choices: list[dict[str, object]] = [{"optimizer__kind": kind} for kind in OPTIMIZERS]
    choices += [{"levers__optimizer_offload": True}, {"levers__fused_backward": True}]
    forms = [
        form(model, "lora", is_checkpointed=is_checkpointed, quantize__denoiser=kind, optimizer__kind=optimizer)
        for model in models
        for is_checkpointed in (True, False)
        for kind in QUANTISED
        for optimizer in OPTIMIZERS
    ]
    forms += [
        form(model, method, weights=weights, is_checkpointed=is_checkpointed, **choice)
        for model in models
        for method, weights in (("lora", "fp32"), ("full", "fp32"), ("full", "bf16"))
        for is_checkpointed in (True, False)
        for choice in choices
        # Both refuse bf16 weights.
        if weights == "fp32" or choice.get("optimizer__kind") not in ("prodigy", "schedule-free")
    ]
    chosen = random.Random(sources_hash()).sample(forms, proof_size(20, 2))
    apart = {
        step.slug(): peak_bytes(step, is_recorded=False) / peak_bytes(step, is_recorded=True) - 1 for step in chosen
    }
    worst = max(apart, key=lambda slug: abs(apart[slug]))
    report_figure(f"{len(apart)} composed steps beside recorded ones: at most {apart[worst]:+.3%} apart ({worst})")
    assert {slug: share for slug, share in apart.items() if abs(share) > MOST_APART} == {}


def test_marked_traces_are_named_as_such() -> None:
    assert {slug for slug in shipped_slugs() if slug.endswith(MARKED)} == {
        one.slug() + MARKED for one in marked_forms()
    }


def test_a_step_in_fp16_is_planned_from_the_trace_in_bf16_where_only_that_ships() -> None:
    def never(_form: StepForm, _size: StepSize) -> StepTrace:
        raise AssertionError("nothing is recorded here")

    shipped, own = (StepForm(model=model, method="lora", precision="fp16") for model in ("flux.1-dev", "own"))
    for traces in (Traces(), Traces(never)):
        assert traces.nearest(shipped) == replace(shipped, precision="bf16")
        quantised = replace(shipped, others=(("quantize.denoiser", "int8"),))
        assert traces.has(quantised, SIZE)
    assert Traces(never).nearest(own) == own
    assert Traces(never, always_live=True).nearest(shipped) == shipped
