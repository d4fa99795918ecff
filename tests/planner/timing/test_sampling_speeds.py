"""Sampling times beside published ones. No number of a plan is fitted to them: the rows of trainings alone are."""

import re
from collections.abc import Callable
from statistics import median

import pytest

from foretune import catalog
from foretune.catalog import Measurement
from foretune.planner.asking import PlanRequest, asked_of, find_subject
from foretune.planner.planning import footprint
from foretune.planner.sizing import size_of
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.timing.passes import denoising_s, passes_s, text_passes
from foretune.planner.timing.speed import NotKnown
from foretune.planner.timing.step_time import TimedTrace
from foretune.planner.timing.work_times import WorkTimes
from foretune.planner.traces import Traces

MODELS = {
    "FLUX.1-dev": "flux.1-dev",
    "SDXL base 1.0": "sdxl-unet",
    "SD1.5": "sd1.5-unet",
    "CogVideoX-5b": "cogvideox-5b",
    "CogVideoX-2b": "cogvideox-2b",
    "HunyuanVideo (12.8B)": "hunyuanvideo",
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


def predicted_s(row: Measurement) -> float:
    """Captions, all denoising steps, and decoding each sample alone."""
    found = STEPS.search(row.speed_unit or "")
    assert found is not None
    batch_size = row.batch_size_per_gpu or 1
    overrides = [
        f"data.resolution={row.resolution}",
        f"validate.num_inference_steps={found[1]}",
        "validate.prompts=[a]",
        "data.held_out=0",
        # The forward part of such a step has nothing that sampling does not have.
        "method.kind=full",
        "train.weight_dtype=bf16",
        "levers.gradient_checkpointing=1",
    ]
    if (row.num_frames or 1) > 1:
        overrides.append(f"data.num_frames={row.num_frames}")
    asked = asked_of(PlanRequest(target=MODELS[row.model], overrides=tuple(overrides)))
    subject = find_subject(asked.model, None)
    run = footprint(asked.experiment, subject, size_of(asked.experiment, subject.geometry), Traces())
    work, speed, times = run.job, speed_of(catalog.device(DEVICES[row.gpu])), WorkTimes()
    once_s = denoising_s(run.planned_step, work.guided_batch * batch_size, speed, times)
    encoding = [one for one in text_passes(run.run, batch_size, 1) if isinstance(one, TimedTrace)]
    around_s = sum(passes_s([one], speed, times, is_cpu=False) for one in encoding)
    decoding_s = batch_size * sum(passes_s([one], speed, times, is_cpu=False) for one in work.decodings)
    return work.num_denoising_passes * once_s + around_s + decoding_s


@pytest.mark.proof
@pytest.mark.slow
def test_sampling_takes_about_as_long_as_published(report_figure: Callable[[str], None]) -> None:
    errors: dict[str, float] = {}
    untimed = []
    for row in rows():
        assert row.speed is not None
        try:
            errors[f"{row.id} {row.model} {row.gpu}"] = predicted_s(row) / float(row.speed) - 1
        except NotKnown:
            untimed.append(row.id)
    assert len(errors) >= 14
    assert len(untimed) <= 2, "a trace without shapes: python -m tools.shipping --without-shapes"
    middle = median(map(abs, errors.values()))
    worst = max(errors, key=lambda name: abs(errors[name]))
    report_figure(
        f"sampling: {len(errors)} published times, median error {middle:.1%}; worst {worst} {errors[worst]:+.0%}"
    )
    assert middle < 0.15
