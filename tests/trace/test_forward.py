"""Passes without gradients: the traced one against the same one really run, and other sizes against direct traces."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from foretune import catalog
from foretune.catalog import ModelComponent
from foretune.choices.experiment import Experiment
from foretune.choices.forward_form import ForwardForm
from foretune.choices.model import read_json
from foretune.models.locating import family_from_catalogue, open_family
from foretune.planner.expansion import expand
from foretune.planner.live_memory import find_peak
from foretune.step.building import attach_method
from foretune.trace.compacting import compacted, fitted, peak_bytes
from foretune.trace.components import component_on_meta, decode, encode, encode_tokens
from foretune.trace.forward import (
    ForwardSizes,
    forward_forms,
    make_forward_trace,
    trace_decode,
    trace_encode,
    trace_sample,
    trace_text,
)
from foretune.trace.recorder import Allocation
from foretune.trace.timeline import timeline
from foretune.trace.tracing import StepSizes, TracedStep


def row(like: str, **changes: Any) -> ModelComponent:
    """A row of the catalogue with another configuration."""
    return catalog.component(like).model_copy(update=changes)


def small_vae() -> ModelComponent:
    config = {**catalog.component("vae-sd3").config, "block_out_channels": [32, 64, 64, 64], "layers_per_block": 1}
    return row("vae-sd3", config=config)


def peak_of(step: TracedStep, rounding_bytes: int = 1) -> int:
    """The most live bytes, added up from the raw events."""
    live = peak = 0
    sizes: dict[int, int] = {}
    for event in step.recording.events:
        if isinstance(event, Allocation):
            sizes[event.number] = -(-event.num_bytes // rounding_bytes) * rounding_bytes
            live += sizes[event.number]
            peak = max(peak, live)
        else:
            live -= sizes.pop(event.number)
    return peak


def measured_peak_bytes(run: Callable[[], object]) -> int:
    """Every allocation and release of a real run as the profiler saw it, added up in order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    del kept
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def real(component: ModelComponent) -> nn.Module:
    """Made here, not loaded: weights that are mapped from a file are no allocation that the profiler could see."""
    model_class: Any = getattr(import_module(component.library), component.class_name)
    config = {key: value for key, value in component.config.items() if not key.startswith("_")}
    is_transformer = component.library == "transformers"
    module: nn.Module = model_class(model_class.config_class(**config)) if is_transformer else model_class(**config)
    return module.eval().requires_grad_(requires_grad=False)


@pytest.mark.takes_turns
@pytest.mark.parametrize("kind", ["encode", "decode"])
def test_autoencoder(kind) -> None:
    vae, sizes = small_vae(), ForwardSizes(2, (16, 24))

    @torch.no_grad()
    def run() -> object:
        module: Any = real(vae)
        if kind == "encode":
            pixels = torch.zeros(2, 3, 128, 192)
            return module, pixels, encode(module, pixels)
        latents = torch.zeros(2, vae.latent_channels or 0, 16, 24)
        return module, latents, decode(module, latents)

    traced = trace_encode(vae, sizes, 1, "cpu") if kind == "encode" else trace_decode(vae, sizes, "cpu", torch.float32)
    # Convolutions of the CPU with a stride use memory inside of an operator, which no recorder sees.
    assert peak_of(traced) == pytest.approx(measured_peak_bytes(run), rel=0.07 if kind == "encode" else 1e-3)


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("family", "part", "like"),
    [
        ("flux", "text_encoder", "clip-l-text"),
        ("flux", "text_encoder_2", "t5-v1_1-xxl-encoder"),
        ("sd3", "text_encoder_2", "clip-bigg-text-proj"),
    ],
)
def test_text_encoder(tiny_pipeline, family, part, like) -> None:
    config = read_json(tiny_pipeline(family) / part / "config.json")
    unknown = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "model_type")
    encoder = row(like, config={key: value for key, value in config.items() if key not in unknown})
    num_tokens = 77 if like.startswith("clip") else 128
    tokens = torch.zeros(8, num_tokens, dtype=torch.int64)

    @torch.no_grad()
    def run() -> object:
        module = real(encoder)
        given = tokens.clone()
        return module, given, encode_tokens(module, given)

    traced = trace_text(encoder, ForwardSizes(8, num_text_tokens=num_tokens), "cpu", torch.float32)
    assert peak_of(traced) == pytest.approx(measured_peak_bytes(run), rel=0.02)


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_sampling(tiny_pipeline, name) -> None:
    family = open_family(tiny_pipeline(name))
    sizes = StepSizes(batch_size=8, height_px=128, width_px=128, num_text_tokens=64)
    asked = {"model": "tiny", "method": {"kind": "lora", "rank": 4}, "data": {"kind": "shapes"}, "train": {"steps": 1}}

    @torch.no_grad()
    def run() -> object:
        config = {key: value for key, value in family.architecture.denoiser.items() if not key.startswith("_")}
        denoiser = family.denoiser_class()(**config)
        attach_method(Experiment.model_validate(asked), family, denoiser)
        denoiser.eval()
        noisy = torch.zeros(8, *family.latent_shape(128, 128))
        specs = family.conditioning_specs(8, 64)
        given = {key: torch.zeros(spec.shape, dtype=spec.dtype) for key, spec in specs.items()}
        return denoiser, noisy, given, family.predict(denoiser, noisy, torch.zeros(8), given, guidance_scale=1.0)

    assert peak_of(trace_sample(family, sizes, 4, "cpu", torch.float32)) == pytest.approx(
        measured_peak_bytes(run), rel=0.02
    )


def test_a_text_encoder_at_other_sizes_to_the_byte() -> None:
    config = {**catalog.component("t5-v1_1-xxl-encoder").config, "num_layers": 2, "vocab_size": 100}
    encoder = row("t5-v1_1-xxl-encoder", config=config)
    probes = [ForwardSizes(b, num_text_tokens=t) for b, t in ((8, 64), (4, 64), (8, 128), (6, 96))]
    sizes = [probe.in_trace() for probe in probes]
    lines = [timeline(trace_text(encoder, probe, "cuda", torch.bfloat16)) for probe in probes]
    lives = fitted(lines, sizes)
    for other in (ForwardSizes(3, num_text_tokens=512), ForwardSizes(16, num_text_tokens=40)):
        truth = peak_of(trace_text(encoder, other, "cuda", torch.bfloat16))
        assert peak_bytes(lives, other.in_trace()) == truth
        assert peak_bytes(compacted(lives, sizes), other.in_trace()) == pytest.approx(truth, rel=2e-3)


@pytest.mark.takes_turns
@pytest.mark.parametrize("kind", ["encode", "decode"])
@pytest.mark.parametrize("name", ["vae-sd1.5", "vae-sana-dc-ae"])
def test_an_autoencoder_at_other_sizes(name, kind) -> None:
    component = catalog.component(name)
    trace = make_forward_trace(ForwardForm(component=name, kind=kind, precision="fp32" if kind == "encode" else "bf16"))
    side = 768 // (component.spatial_compression or 1)
    sizes = ForwardSizes(2, (side, side + side // 2))
    direct = trace_encode(component, sizes, 1, "cuda") if kind == "encode" else trace_decode(component, sizes, "cuda")
    predicted = find_peak(expand(trace, sizes.in_trace())).num_bytes
    # Borders that are padded do not grow with the area.
    assert predicted == pytest.approx(peak_of(direct), rel=2e-3)


def test_sampling_takes_no_more_in_a_deeper_model(tiny_pipeline) -> None:
    """So a model of few blocks is enough to know it; weights are counted with the step's."""
    family = open_family(tiny_pipeline("flux"))
    sizes = StepSizes(batch_size=2, height_px=128, width_px=128, num_text_tokens=64)
    beside_weights = []
    for depths in ((2, 2), (5, 7)):
        step = trace_sample(family.with_depths(depths), sizes, 4, "cuda", torch.bfloat16)
        line = timeline(step)
        left_out = ("frozen weights", "trained weights", "cast weights")
        beside_weights.append(peak_bytes(fitted([line], [(2, 256, 64, 4)], left_out), (2, 256, 64, 4)))
    assert beside_weights[0] == beside_weights[1] > 0


def test_weights_of_every_component_are_those_of_the_catalogue() -> None:
    for form in forward_forms():
        if form.kind == "text" and form.precision == "bf16":
            module = component_on_meta(catalog.component(form.component), torch.bfloat16)
            assert sum(p.numel() for p in module.parameters()) == catalog.component(form.component).num_params


def test_forms_cover_what_denoisers_run_beside() -> None:
    forms = set(forward_forms())
    for name, denoiser in catalog.denoisers().items():
        assert ForwardForm(component=name, kind="sample", precision="bf16") in forms
        if denoiser.system is not None and denoiser.system.vae is not None:
            num_frames = family_from_catalogue(name).default_num_frames()
            for kind, precision in (("encode", "fp32"), ("decode", "bf16")):
                form = {"component": denoiser.system.vae, "kind": kind, "precision": precision}
                assert ForwardForm(**form, num_frames=num_frames) in forms  # type: ignore[arg-type]
        for encoder in denoiser.system.text_encoders if denoiser.system is not None else ():
            assert ForwardForm(component=encoder, kind="text", precision="bf16") in forms
