"""Plans of inference beside published times and peaks. Nothing is fitted to them: trainings alone are."""

import re
from collections.abc import Callable
from statistics import median

import pytest

from foretune import catalog
from foretune.catalog import Measurement
from foretune.core.units import GIB
from foretune.core.values.inference_plan import InferencePlan
from foretune.planner.inference.planning import InferencePlanner
from foretune.planner.inference.question import InferenceQuestion
from foretune.trace.shipped import geometries

MODELS = {
    "FLUX.1-dev": "flux.1-dev",
    "SDXL base 1.0": "sdxl-unet",
    "SD1.5": "sd1.5-unet",
    "CogVideoX-5b": "cogvideox-5b",
    "CogVideoX-2b": "cogvideox-2b",
    "HunyuanVideo (12.8B)": "hunyuanvideo",
    "LTX-Video (0.9, 1.9B)": "ltx-video-0.9",
    "Wan2.1-T2V-14B": "wan2.1-t2v-14b",
    "Wan2.1-T2V-1.3B": "wan2.1-t2v-1.3b",
}
DEVICES = {
    "RTX 4090": "rtx-4090",
    "H20": "h20",
    "H100": "h100-sxm",
    "H100/H800": "h100-sxm",
    "A100": "a100-80gb-sxm",
    "A100 SXM": "a100-80gb-sxm",
    "A100/A800": "a100-80gb-sxm",
}
PROGRAMS = ("diffusers", "diffusers SDPA", "diffusers fp16 + SDPA", "Wan-Video official")
"""Eager PyTorch with fused attention, as validation samples."""
USUAL_SHARE = 0.5
"""Of the peak, for the rule of thumb."""
STEPS = re.compile(r"\((\d+) steps")


def rows() -> list[Measurement]:
    """Grade A, one device, 16 bits, nothing quantised, and a stated number of steps."""
    return [
        row
        for row in catalog.measurements().values()
        if (row.task, row.grade, row.num_gpus, row.quantization) == ("infer", "A", 1, "none")
        and row.model in MODELS
        and row.precision in ("bf16", "fp16")
        and row.gpu in DEVICES
        and row.framework in PROGRAMS
        and row.speed is not None
        and STEPS.search(row.speed_unit or "")
    ]


def memory_rows() -> list[Measurement]:
    """Grade A, one device, diffusers in 16 bits with nothing quantised or offloaded, and an exact peak."""
    return [
        row
        for row in catalog.measurements().values()
        if (row.task, row.grade, row.num_gpus, row.quantization, row.bound) == ("infer", "A", 1, "none", "exact")
        and row.model in MODELS
        and row.precision in ("bf16", "fp16")
        and row.gpu in DEVICES
        and row.framework in ("diffusers", "diffusers fp16 + SDPA")
        and row.peak_mem is not None
    ]


def planned(row: Measurement) -> InferencePlan:
    """The plan of inference for a row, with all parts on the device."""
    found = STEPS.search(row.speed_unit or "")
    question = InferenceQuestion(
        model=MODELS[row.model],
        batch_size=row.batch_size_per_gpu or 1,
        precision="fp16" if row.precision == "fp16" else "bf16",
        size_px=row.resolution,
        num_frames=row.num_frames if (row.num_frames or 1) > 1 else None,
        num_inference_steps=28 if found is None else int(found[1]),
    )
    return InferencePlanner(question, None).plan_on(catalog.device(DEVICES[row.gpu]), advises=False)


def operations_s(plan: InferencePlan, device: str, share: float) -> float:
    """A rule of thumb: two operations for each weight and token, at a share of the device's peak."""
    assert plan.time is not None
    row, geometry = catalog.denoiser(plan.model), geometries()[plan.model]
    positions = geometry.latent_positions(plan.height_px, plan.width_px, plan.num_frames)
    # Transformers join 2 x 2 latent positions to a token; the same is taken for a UNet.
    num_tokens = plan.time.samples_per_pass * (positions / 4 + plan.num_text_tokens)
    flops = 2 * row.num_params * num_tokens * plan.time.passes_per_step * plan.num_inference_steps
    peak = catalog.device(device).bf16_dense_tflops
    assert peak is not None
    return flops / (share * peak * 1e12)


@pytest.mark.proof
@pytest.mark.slow
def test_sampling_takes_about_as_long_as_published(report_figure: Callable[[str], None]) -> None:
    errors: dict[str, float] = {}
    trivial: dict[str, float] = {}
    untimed = []
    for row in rows():
        assert row.speed is not None
        plan, name = planned(row), f"{row.id} {row.model} {row.gpu}"
        if plan.time is None:
            untimed.append(row.id)
            continue
        errors[name] = plan.time.total_s / float(row.speed) - 1
        trivial[name] = operations_s(plan, DEVICES[row.gpu], USUAL_SHARE) / float(row.speed) - 1
    assert len(errors) >= 14
    assert len(untimed) <= 2, "a trace without shapes: python -m tools.shipping --without-shapes"
    middle, baseline = (median(map(abs, found.values())) for found in (errors, trivial))
    worst = max(errors, key=lambda name: abs(errors[name]))
    report_figure(
        f"sampling: {len(errors)} published times, median error {middle:.1%}; worst {worst} {errors[worst]:+.0%}; two "
        f"operations for each weight and token at {USUAL_SHARE:.0%} of the peak: {baseline:.1%}"
    )
    assert middle < 0.15
    assert middle < baseline / 2


@pytest.mark.proof
@pytest.mark.slow
def test_sampling_takes_about_as_much_memory_as_published(report_figure: Callable[[str], None]) -> None:
    """Peaks of tensors in diffusers with all parts on the device. Which figure a row is, is often not stated."""
    errors: dict[str, float] = {}
    trivial: dict[str, float] = {}
    for row in memory_rows():
        plan, name = planned(row), f"{row.id} {row.model}"
        assert row.peak_mem is not None
        published = row.peak_mem * GIB
        weights = sum(plan.phases[0].device_bytes_by_part.values())
        peak = plan.reserved_bytes if row.peak_mem_kind == "max_memory_reserved" else plan.allocated_bytes
        errors[name], trivial[name] = peak / published - 1, weights / published - 1
    assert len(errors) >= 10
    middle, baseline = (median(map(abs, found.values())) for found in (errors, trivial))
    worst = max(errors, key=lambda name: abs(errors[name]))
    report_figure(
        f"memory of sampling: {len(errors)} published peaks, median error {middle:.1%}; worst {worst} "
        f"{errors[worst]:+.0%}; weights alone: {baseline:.1%}"
    )
    assert middle < 0.12
    assert middle < baseline / 2
