"""Records forward passes without gradients on fake tensors: encoding images and captions, sampling, decoding.

Their traces are StepTraces whose `method` is the kind of pass. Sizes are those of a step: samples, latent positions
(height x width x frames of the latents, also for encoding and decoding), text tokens, adapter rank.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from foretune import catalog
from foretune.catalog import ModelComponent
from foretune.choices.experiment import Experiment
from foretune.choices.forward_form import ForwardForm
from foretune.choices.training import Levers
from foretune.core.values.base import content_hash
from foretune.core.values.step_trace import Growth, HostOperators, StepTrace, Work
from foretune.core.vocabulary import WEIGHTS, MemoryPart, StepPhase
from foretune.models.family import GUIDE, Family
from foretune.models.locating import family_from_catalogue
from foretune.step.building import attach_method
from foretune.trace.accelerator import AcceleratorNumerics
from foretune.trace.answers import AssumedData
from foretune.trace.compacting import (
    Life,
    as_storages,
    at_any_size,
    compacted,
    fitted,
    per_sample,
)
from foretune.trace.components import component_on_meta, decode, encode, encode_tokens
from foretune.trace.fake_model import materialise
from foretune.trace.growth import Sizes
from foretune.trace.probing import probes, shallow
from foretune.trace.program import IrregularStep
from foretune.trace.recorder import Recorder
from foretune.trace.timeline import timeline
from foretune.trace.tracing import Numerics, StepSizes, TracedStep
from foretune.trace.work import total_work, work_at_any_size

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_VAE_DTYPE = torch.float32
_IMAGE_PX = 1024
_RGB = 3
# Models above this size are not trained in fp32.
_MOST_PARAMS_FP32 = 1_000_000_000
_MADE_WITH = ("torch", "diffusers", "transformers", "peft")

Probed = Literal["all sizes", "one batch", "one size"]
_PROBED: tuple[Probed, ...] = ("all sizes", "one batch", "one size")


@dataclass(frozen=True)
class ForwardSizes:
    """The sizes at which a pass is recorded."""

    batch_size: int
    latent: tuple[int, ...] = ()
    """Frames (of a video), height and width of the latents."""
    num_text_tokens: int = 0

    def in_trace(self) -> Sizes:
        positions = 1
        for side in self.latent:
            positions *= side
        return self.batch_size, positions, self.num_text_tokens, 0


def record_forward(
    module: nn.Module,
    call: Callable[[nn.Module, Recorder], Any],
    numerics: Numerics,
    autocast: torch.dtype | None = None,
) -> TracedStep:
    """Runs a module on meta once with fake tensors. `call` creates the inputs, marks the forward phase and calls it."""
    recorder = Recorder(lambda _phase: None)
    accelerator = AcceleratorNumerics(recorder, autocast) if numerics == "cuda" else None
    with FakeTensorMode(allow_non_fake_inputs=True), recorder, AssumedData(), torch.no_grad():
        materialise(module)
        tensors = (*module.parameters(), *module.buffers())
        categories: dict[int, str] = {
            recorder.number_of(t): MemoryPart.TRAINED_WEIGHTS if t.requires_grad else MemoryPart.FROZEN_WEIGHTS
            for t in tensors
        }
        if accelerator is not None:
            with accelerator:
                kept = call(module, recorder)
            categories |= {recorder.number_of(t): MemoryPart.CAST_WEIGHTS for t in accelerator.cast_weights()}
        else:
            with torch.autocast("cpu", autocast) if autocast is not None else torch.no_grad():
                kept = call(module, recorder)
        recording = recorder.finish()
        del kept
    return TracedStep(recording, categories, {}, (), 0, sum(p.numel() for p in module.parameters()))


# ---- autoencoders


def trace_encode(row: ModelComponent, sizes: ForwardSizes, num_frames: int, numerics: Numerics) -> TracedStep:
    """Records encoding of images, or videos of `num_frames`, in fp32 without autocast, as caching does."""

    def call(vae: nn.Module, recorder: Recorder) -> Any:
        recorder.phase = StepPhase.INPUTS
        assert row.spatial_compression is not None
        edges = [side * row.spatial_compression for side in sizes.latent[-2:]]
        frames = [num_frames] if len(sizes.latent) > len(edges) else []
        pixels = torch.empty(sizes.batch_size, _RGB, *frames, *edges)
        recorder.phase = StepPhase.FORWARD
        return pixels, encode(vae, pixels)

    return record_forward(_autoencoder(row), call, numerics)


def trace_decode(
    row: ModelComponent, sizes: ForwardSizes, numerics: Numerics, precision: torch.dtype = torch.bfloat16
) -> TracedStep:
    """Records decoding of latents with fp32 weights under the training's autocast, as validation does."""

    def call(vae: nn.Module, recorder: Recorder) -> Any:
        recorder.phase = StepPhase.INPUTS
        latents = torch.empty(sizes.batch_size, row.latent_channels or 1, *sizes.latent, dtype=precision)
        recorder.phase = StepPhase.FORWARD
        return latents, decode(vae, latents)

    # The pipeline's autoencoder is not frozen, so autocast caches a low-precision copy of each of its weights.
    vae = _autoencoder(row).requires_grad_(requires_grad=True)
    return record_forward(vae, call, numerics, None if precision == torch.float32 else precision)


def _autoencoder(row: ModelComponent) -> nn.Module:
    return component_on_meta(row, _VAE_DTYPE).requires_grad_(requires_grad=False)


# ---- text encoders


def trace_text(row: ModelComponent, sizes: ForwardSizes, numerics: Numerics, dtype: torch.dtype) -> TracedStep:
    """Records a text encoder, loaded in this dtype, on captions of this number of tokens."""

    def call(encoder: nn.Module, recorder: Recorder) -> Any:
        recorder.phase = StepPhase.INPUTS
        tokens = torch.empty(sizes.batch_size, sizes.num_text_tokens, dtype=torch.int64)
        recorder.phase = StepPhase.FORWARD
        return tokens, encode_tokens(encoder, tokens)

    return record_forward(component_on_meta(row, dtype).requires_grad_(requires_grad=False), call, numerics)


# ---- denoisers


def trace_sample(
    family: Family, sizes: StepSizes, rank: int, numerics: Numerics, precision: torch.dtype = torch.bfloat16
) -> TracedStep:
    """Records one denoising pass with adapters of this rank, in evaluation mode under the training's autocast.

    A model that sorts its tokens by their values in evaluation mode is recorded in training mode, which needs a little
    more memory.
    """
    try:
        return _trace_sample(family, sizes, rank, numerics, precision, is_training=False)
    except DynamicOutputShapeException:
        return _trace_sample(family, sizes, rank, numerics, precision, is_training=True)


def _trace_sample(
    family: Family, sizes: StepSizes, rank: int, numerics: Numerics, precision: torch.dtype, *, is_training: bool
) -> TracedStep:
    asked = {
        "model": "any",
        "method": {"kind": "lora", "rank": rank},
        "data": {"kind": "shapes"},
        "train": {"steps": 1},
    }
    denoiser = family.denoiser_on_meta(precision)
    attach_method(Experiment.model_validate(asked), family, denoiser)
    denoiser.train(is_training)

    def call(module: nn.Module, recorder: Recorder) -> Any:
        recorder.phase = StepPhase.INPUTS
        shape = (sizes.batch_size, *family.latent_shape(sizes.height_px, sizes.width_px, sizes.num_frames))
        noisy = torch.empty(shape, dtype=precision)
        conditioning = {
            name: torch.empty(spec.shape, dtype=precision if spec.dtype.is_floating_point else spec.dtype)
            for name, spec in family.conditioning_specs(sizes.batch_size, sizes.num_text_tokens).items()
        }
        if family.num_guide_channels():
            conditioning[GUIDE] = torch.empty(shape[0], family.num_guide_channels(), *shape[2:], dtype=precision)
        time = torch.empty(sizes.batch_size)
        recorder.phase = StepPhase.FORWARD
        return noisy, conditioning, family.predict(module, noisy, time, conditioning, guidance_scale=1.0)

    return record_forward(denoiser, call, numerics, None if precision == torch.float32 else precision)


# ---- traces of every form


def forward_forms() -> tuple[ForwardForm, ...]:
    """Returns every forward pass that runs of the catalogue's denoisers make, without duplicates."""
    found: dict[ForwardForm, None] = {}
    for name, row in catalog.denoisers().items():
        found[ForwardForm(component=name, kind="sample", precision="bf16")] = None
        if row.num_params < _MOST_PARAMS_FP32:
            found[ForwardForm(component=name, kind="sample", precision="fp32")] = None
        if row.system is None:
            continue
        if row.system.vae is not None:
            num_frames = family_from_catalogue(name).default_num_frames()
            found |= dict.fromkeys(_autoencoder_forms(row.system.vae, num_frames))
        for encoder in row.system.text_encoders:
            found |= dict.fromkeys(_text_forms(encoder))
    return tuple(found)


def _autoencoder_forms(name: str, num_frames: int) -> Iterator[ForwardForm]:
    yield ForwardForm(component=name, kind="encode", precision="fp32", num_frames=num_frames)
    yield ForwardForm(component=name, kind="decode", precision="bf16", num_frames=num_frames)
    # Without autocast: a pipeline in bf16 decodes with half of these bytes.
    yield ForwardForm(component=name, kind="decode", precision="fp32", num_frames=num_frames)


def _text_forms(name: str) -> Iterator[ForwardForm]:
    for precision in ("bf16", "fp32"):
        yield ForwardForm(component=name, kind="text", precision=precision)
    if catalog.component(name).class_name in ("T5EncoderModel", "UMT5EncoderModel"):
        # These keep some of their weights in fp32 if loaded in fp16.
        yield ForwardForm(component=name, kind="text", precision="fp16")


def make_forward_trace(form: ForwardForm, numerics: Numerics = "cuda") -> StepTrace:
    """Returns a trace for every size: records a few sizes, fits each storage's growth and merges small storages.

    A model that processes samples one by one runs another program for each batch size, and one that splits its work by
    memory use, for each image size. Then one batch size, or one image size, is recorded; at others the trace is less
    exact.
    """
    # Captions and a denoiser's inputs have many sizes; an autoencoder's pixels have one typical size.
    attempts = _PROBED if form.kind in ("encode", "decode") else _PROBED[:2]
    return _made(form, numerics, _first_regular(form, numerics, attempts))


@dataclass(frozen=True)
class _Regular:
    """What recordings of several sizes have in common."""

    phases: tuple[str, ...]
    lives: Sequence[Life]
    work: tuple[Work, ...]
    host_operators: tuple[HostOperators, ...]


def _first_regular(form: ForwardForm, numerics: Numerics, attempts: Sequence[Probed]) -> _Regular:
    probed = attempts[0]
    steps, sizes = _recordings(form, numerics, probed)
    try:
        lives = _lives(form, steps, sizes)
        work, host_operators = _work(form, steps, sizes, probed)
    except IrregularStep:
        if len(attempts) == 1:
            raise
        return _first_regular(form, numerics, attempts[1:])
    if probed == "one batch":
        lives = [replace(life, growth=per_sample(life.growth, sizes[0][0])) for life in lives]
    elif probed == "one size":
        lives = [at_any_size(life, sizes[0]) for life in lives]
    return _Regular(timeline(steps[0]).phases, compacted(lives, sizes), work, host_operators)


def _work(
    form: ForwardForm, steps: Sequence[TracedStep], sizes: list[Sizes], probed: Probed
) -> tuple[tuple[Work, ...], tuple[HostOperators, ...]]:
    """Returns the work of a whole component. A denoiser is recorded with few blocks: its step's trace has its work."""
    if form.kind == "sample":
        return (), ()
    # "one batch" is one sample.
    work, host_operators = total_work((), steps, sizes, per_sample=probed == "one batch")
    if probed == "one size":
        work = tuple(work_at_any_size(one, sizes[0]) for one in work)
    return work, host_operators


def _recordings(form: ForwardForm, numerics: Numerics, probed: Probed) -> tuple[list[TracedStep], list[Sizes]]:
    row, precision = catalog.component(form.component), _DTYPES[form.precision]
    if form.kind == "sample":
        return _sample_recordings(family_from_catalogue(form.component), numerics, precision, probed)
    sizes = _text_sizes(row) if form.kind == "text" else _autoencoder_sizes(row, form)
    if probed != "all sizes":
        sizes = list(dict.fromkeys(replace(size, batch_size=1) for size in sizes))
    if probed == "one size":
        sizes = sizes[-1:]  # the typical one
    if form.kind == "text":
        steps = [trace_text(row, size, numerics, precision) for size in sizes]
    elif form.kind == "encode":
        steps = [trace_encode(row, size, form.num_frames, numerics) for size in sizes]
    else:
        steps = [trace_decode(row, size, numerics, precision) for size in sizes]
    return steps, [size.in_trace() for size in sizes]


def _sample_recordings(
    family: Family, numerics: Numerics, precision: torch.dtype, probed: Probed
) -> tuple[list[TracedStep], list[Sizes]]:
    """Records a model of few blocks: without gradients no block leaves anything in memory, so the peak is the same."""
    recorded = shallow(family, Levers())
    asked = list(probes(recorded, has_rank=True))
    if probed == "one batch":
        batch_size = asked[0].sizes.batch_size
        asked = [replace(probe, sizes=replace(probe.sizes, batch_size=batch_size)) for probe in asked]
        asked = list(dict.fromkeys(asked))
    steps = [trace_sample(recorded, probe.sizes, probe.rank, numerics, precision) for probe in asked]
    return steps, [probe.in_trace(recorded) for probe in asked]


def _text_sizes(row: ModelComponent) -> list[ForwardSizes]:
    if row.class_name.startswith("CLIP"):
        # These always take as many tokens as they have positions.
        num_tokens = int(row.config["max_position_embeddings"])
        return [ForwardSizes(batch, num_text_tokens=num_tokens) for batch in (8, 4, 6)]
    return [ForwardSizes(batch, num_text_tokens=tokens) for batch, tokens in ((8, 256), (4, 256), (8, 512), (6, 384))]


def _autoencoder_sizes(row: ModelComponent, form: ForwardForm) -> list[ForwardSizes]:
    """Returns sizes around the model's native size, because padded borders grow only nearly linearly with the area."""
    height_px, width_px = _usual_size_px(row)
    assert row.spatial_compression is not None
    assert row.temporal_compression is not None
    # A video autoencoder also encodes single images.
    has_frames = row.temporal_compression > 1
    frames = ((form.num_frames - 1) // row.temporal_compression + 1,) if has_frames else ()

    def latent(share: float) -> tuple[int, ...]:
        edges = (height_px / row.spatial_compression * share, width_px / row.spatial_compression * share)  # type: ignore[operator]
        return (*frames, *(2 * round(edge / 2) for edge in edges))

    # Never one sample: some tensors would already be contiguous, and the program would differ.
    shares = ((2, 0.5), (3, 0.5), (2, 1.25), (4, 1.0))
    return [ForwardSizes(batch_size, latent(share)) for batch_size, share in shares]


def _usual_size_px(row: ModelComponent) -> tuple[int, int]:
    """Returns the native height and width of a denoiser with this autoencoder."""
    for name, other in catalog.denoisers().items():
        if other.system is not None and other.system.vae == row.name:
            return family_from_catalogue(name).default_size_px()
    return _IMAGE_PX, _IMAGE_PX


def _lives(form: ForwardForm, steps: Sequence[TracedStep], sizes: list[Sizes]) -> list[Life]:
    # The denoiser's weights, and autocast's copies of the trained ones, are counted with the step's.
    left_out = (*WEIGHTS, MemoryPart.CAST_WEIGHTS) if form.kind == "sample" else ()
    return fitted([timeline(step) for step in steps], sizes, left_out)


def _made(form: ForwardForm, numerics: Numerics, regular: _Regular) -> StepTrace:
    growths: dict[Growth, int] = {}
    categories: dict[str, int] = {}
    storages = as_storages(
        regular.lives,
        lambda growth: growths.setdefault(growth, len(growths)),
        lambda category: categories.setdefault(category, len(categories)),
    )
    row = catalog.component(form.component)
    return StepTrace(
        model=form.component,
        method=form.kind,
        precision=form.precision,
        checkpointing=0.0,
        numerics=numerics,
        phases=regular.phases,
        backward_phases=(),
        categories=tuple(categories),
        growths=tuple(growths),
        outside=storages,
        kinds=(),
        work=regular.work,
        host_operators=regular.host_operators,
        made_with={name: version(name) for name in _MADE_WITH},
        made_from=content_hash([form.slug(), row.class_name, row.config]),
    )
