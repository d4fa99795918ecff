"""The traced step against the same step really run, by the profiler's own record of allocations."""

import gc
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from foretune.choices.experiment import Experiment
from foretune.data.batch import Batch
from foretune.models.family import Family
from foretune.models.locating import open_family
from foretune.step.building import assemble, build_step
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.trace.recorder import Allocation
from foretune.trace.tracing import StepSizes, trace_step
from tests.cpu_kernels import tolerance

MIB = 2**20


def experiment(method: dict[str, Any], precision: str, share: float, accumulation: int, ema: bool) -> Experiment:
    train = {"steps": 2, "precision": precision, "gradient_accumulation": accumulation, "ema": {} if ema else None}
    levers = {"gradient_checkpointing": share}
    return Experiment.model_validate(
        {"model": "tiny", "method": method, "data": {"kind": "shapes"}, "train": train, "levers": levers}
    )


def real_batch(family: Family, sizes: StepSizes) -> Batch:
    latent = (sizes.batch_size, *family.latent_shape(sizes.height_px, sizes.width_px))
    specs = family.conditioning_specs(sizes.batch_size, sizes.num_text_tokens)
    return Batch(
        step=0,
        micro=0,
        indices=tuple(range(sizes.batch_size)),
        captions=("",) * sizes.batch_size,
        images=None if family.has_latents else torch.zeros(latent),
        moments=torch.zeros(latent[0], latent[1] * 2, *latent[2:]) if family.has_latents else None,
        conditioning={name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()},
        noise=torch.ones(latent),
        posterior_noise=torch.ones(latent) if family.has_latents else None,
        uniform=torch.full((sizes.batch_size,), 0.5, dtype=torch.float64),
    )


def measured_peak_bytes(asked: Experiment, family: Family, sizes: StepSizes) -> int:
    """Two real steps on the CPU; every allocation and release as the profiler saw it, added up in order."""
    accumulation = asked.train.gradient_accumulation
    dtype = METHODS[asked.method.kind].load_dtype(PrecisionPolicy.of(asked.train))
    gc.collect()  # garbage of earlier tests, released while the profiler watches, would count as negative memory
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        # Made here, not loaded: weights that are mapped from a file are no allocation that the profiler could see.
        config = {key: value for key, value in family.architecture.denoiser.items() if not key.startswith("_")}
        denoiser = family.denoiser_class()(**config).to(dtype)
        assembled = assemble(asked, family, denoiser)
        step = build_step(asked, family, assembled, torch.device("cpu"))
        for number in range(2):
            step(number, 1e-4, (real_batch(family, sizes) for _ in range(accumulation)), accumulation)
    assert profiler.profiler is not None
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    live = peak = 0
    for _, num_bytes in sorted(changes, key=lambda change: change[0]):
        live += num_bytes
        peak = max(peak, live)
    return peak


def traced_peak_bytes(asked: Experiment, family: Family, sizes: StepSizes) -> int:
    live = peak = 0
    alive: dict[int, int] = {}
    for event in trace_step(asked, family, sizes, "cpu").recording.events:
        if isinstance(event, Allocation):
            alive[event.number] = event.num_bytes
            live += event.num_bytes
            peak = max(peak, live)
        else:
            live -= alive.pop(event.number)
    return peak


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", ["flux", "sd3"])
@pytest.mark.parametrize(
    ("method", "precision", "share", "accumulation", "ema"),
    [
        ({"kind": "full"}, "fp32", 0.0, 1, True),
        ({"kind": "full"}, "fp32", 0.5, 2, False),
        ({"kind": "lora", "rank": 4}, "fp32", 1.0, 1, False),
        ({"kind": "lora", "rank": 8, "dropout": 0.1}, "fp32", 0.0, 1, False),
        ({"kind": "lora", "rank": 4}, "bf16", 0.5, 1, True),
    ],
)
def test_traced_memory_is_the_real_one(tiny_pipeline, name, method, precision, share, accumulation, ema) -> None:
    family = open_family(tiny_pipeline(name))
    asked = experiment(method, precision, share, accumulation, ema)
    sizes = StepSizes(batch_size=8, height_px=128, width_px=128, num_text_tokens=64)
    truth = measured_peak_bytes(asked, family, sizes)
    assert truth > 4 * MIB
    assert traced_peak_bytes(asked, family, sizes) == pytest.approx(
        truth, rel=0.001 if precision == "fp32" else tolerance(0.005)
    )


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", ["flux", "sd3"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_full_bf16_with_checkpointing(tiny_pipeline, name, share) -> None:
    """The peak is inside a matrix product, whose buffers are known to a few hundred KiB: a percent of so little."""
    family = open_family(tiny_pipeline(name))
    asked = experiment({"kind": "full"}, "bf16", share, 1, False)
    sizes = StepSizes(batch_size=8, height_px=128, width_px=128, num_text_tokens=64)
    truth = measured_peak_bytes(asked, family, sizes)
    assert traced_peak_bytes(asked, family, sizes) == pytest.approx(truth, rel=tolerance(0.015))


@pytest.mark.takes_turns
@pytest.mark.parametrize(("precision", "most_apart"), [("fp32", 0.002), ("bf16", 0.015)])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_pixel_unet(tiny_pipeline, share, precision, most_apart) -> None:
    family = open_family(tiny_pipeline("ddpm"))
    asked = experiment({"kind": "full"}, precision, share, 1, False)
    sizes = StepSizes(batch_size=8, height_px=32, width_px=32, num_text_tokens=0)
    truth = measured_peak_bytes(asked, family, sizes)
    assert traced_peak_bytes(asked, family, sizes) == pytest.approx(truth, rel=tolerance(most_apart))


def test_the_comparison_can_see(tiny_pipeline) -> None:
    """A control: the trace of another experiment is far from the truth, so closeness above means something."""
    family = open_family(tiny_pipeline("flux"))
    sizes = StepSizes(batch_size=8, height_px=128, width_px=128, num_text_tokens=64)
    truth = measured_peak_bytes(experiment({"kind": "full"}, "fp32", 0.0, 1, False), family, sizes)
    other = traced_peak_bytes(experiment({"kind": "full"}, "fp32", 1.0, 1, False), family, sizes)
    assert other < 0.6 * truth
