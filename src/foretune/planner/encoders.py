"""The forward passes around a training step: their traces and sizes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from foretune import catalog
from foretune.choices.forward_form import ForwardForm, ForwardKind, TracedPrecision
from foretune.choices.quantize import EncoderNumbers
from foretune.choices.training import Precision
from foretune.core.values.step_trace import StepTrace
from foretune.core.vocabulary import WEIGHTS, MemoryPart
from foretune.data.at_once import TILE_OVERLAP, TILE_PX, VIDEO_TILE_PX
from foretune.planner.block_events import Event, Sizes
from foretune.planner.expansion import bytes_by_category, expand
from foretune.planner.quantized import largest_dense_bytes, quantized_share

Forwards = Callable[[ForwardForm], StepTrace | None]
"""Finds the trace of a forward pass; None if there is none."""

BYTES_PER_WEIGHT: dict[Precision, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_FP32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The images or videos of one bucket."""

    height_px: int
    width_px: int
    num_frames: int = 1
    usual_num_frames: int = 1
    """The length for which the model's autoencoder is traced."""


@dataclass(frozen=True)
class Pass:
    """A component's weights, and the allocations of one forward pass."""

    component: str
    weights_bytes: int
    events: tuple[Event, ...]
    note: str | None = None
    """What is unknown about it."""
    dense_bytes: int = 0
    """Bytes of its weights before quantisation; 0 if they are not quantised."""
    widened_bytes: int = 0
    """Bytes of the largest layer of a quantised component, dequantised for its product."""
    stitched_bytes: int = 0
    """Bytes of tiles waiting to be stitched, and of the stitched result."""


class TracedPass(NamedTuple):
    """A forward pass of a component, and its trace."""

    form: ForwardForm
    trace: StepTrace


def autoencoder_pass(
    forwards: Forwards,
    name: str,
    kind: ForwardKind,
    precision: Precision,
    extent: Extent,
    num_samples: int,
    *,
    tiled: bool = False,
    in_precision: bool = False,
) -> Pass:
    """Returns the pass of images or videos through the autoencoder, encoding or decoding. Its weights are fp32, or with
    `in_precision` in the precision, without autocast.

    With tiling, one tile is computed at a time; all tiles wait in fp32 until they are stitched.

    A video of another length than the traced one is assumed to need as much as the traced length or, if longer, in
    proportion to its positions. This is an upper bound, because chunks of frames do not grow with their number.
    """
    if tiled and (tile := tile_of(extent)) != extent:
        of_one_tile = autoencoder_pass(forwards, name, kind, precision, tile, num_samples, in_precision=in_precision)
        return replace(of_one_tile, stitched_bytes=_stitched_bytes(extent) * num_samples if kind == "decode" else 0)
    # In 16 bits without autocast all tensors have half of their bytes in fp32.
    traced = autoencoder_trace(forwards, name, kind, "fp32" if in_precision else precision, extent)
    if traced is None:
        return _weights_alone(name, precision if in_precision else "fp32")
    form, trace = traced
    positions = max(latent_positions(name, extent, count) for count in (form.num_frames, extent.num_frames))
    scale = 1 if in_precision else _scale(form.precision, precision, kind)
    found = _pass(name, trace, (num_samples, positions, 0, 0), scale)
    if in_precision:
        found = _without_autocast(found, form.precision, precision)
    return replace(found, note=_of_another_length(name, extent, form.num_frames) or found.note)


def _without_autocast(found: Pass, traced: TracedPrecision, precision: Precision) -> Pass:
    """Returns a pass with weights in the precision. Its trace is of fp32, or under autocast with fp32 weights.

    Autocast computes norms in fp32, so that a pass that is only traced with it takes less than what is counted.
    """
    share = BYTES_PER_WEIGHT[precision] / _FP32_BYTES
    share_of_events = share if traced == "fp32" else BYTES_PER_WEIGHT[precision] / BYTES_PER_WEIGHT[traced]
    return replace(
        found,
        weights_bytes=round(found.weights_bytes * share),
        events=tuple(
            Event(event.storage, ceil(event.num_bytes * share_of_events), event.category, event.phase)
            for event in found.events
            if event.category != MemoryPart.CAST_WEIGHTS
        ),
        note=None if traced == "fp32" else f"the memory that {found.component} saves by decoding without autocast",
    )


def autoencoder_trace(
    forwards: Forwards, name: str, kind: ForwardKind, precision: Precision, extent: Extent
) -> TracedPass | None:
    """Returns the trace for a training in this precision: of clips as long as these, or of the usual length."""
    by_precision: tuple[TracedPrecision, ...] = ("fp32",) if kind == "encode" else _candidates(precision)
    frames = dict.fromkeys((extent.num_frames, extent.usual_num_frames))
    forms = (
        ForwardForm(component=name, kind=kind, precision=candidate, num_frames=num_frames)
        for num_frames in frames
        for candidate in by_precision
    )
    return _first_traced(forwards, forms)


def text_trace(forwards: Forwards, name: str, precision: Precision) -> TracedPass | None:
    """Returns the trace of a text encoder for a training in this precision."""
    candidates = _candidates(precision)
    return _first_traced(forwards, (ForwardForm(component=name, kind="text", precision=one) for one in candidates))


def _first_traced(forwards: Forwards, forms: Iterable[ForwardForm]) -> TracedPass | None:
    traced = (TracedPass(form, trace) for form in forms if (trace := forwards(form)) is not None)
    return next(traced, None)


def tile_of(extent: Extent) -> Extent:
    """Returns the largest part that goes through the autoencoder at once with `levers.vae_tiling`."""
    side_px = TILE_PX if extent.num_frames == 1 else VIDEO_TILE_PX
    return replace(extent, height_px=min(side_px, extent.height_px), width_px=min(side_px, extent.width_px))


def _stitched_bytes(extent: Extent) -> int:
    """Returns bytes of decoded tiles with overlaps, and of the whole image or video. Latents are negligible."""
    num_values = 3 * extent.height_px * extent.width_px * extent.num_frames
    return round(num_values * _FP32_BYTES * (1 + 1 / (1 - TILE_OVERLAP) ** 2))


def _of_another_length(name: str, extent: Extent, traced_num_frames: int) -> str | None:
    """Returns a note for short videos, which take less than what is counted; the figure alone would not show it."""
    if extent.num_frames >= traced_num_frames:
        return None
    asked = "1 frame" if extent.num_frames == 1 else f"{extent.num_frames} frames"
    return f"{name}: the memory that {asked} save; {traced_num_frames} frames are counted"


def latent_positions(name: str, extent: Extent, num_frames: int) -> int:
    """Returns the latent positions of a sample in the autoencoder; a denoiser may combine several of them."""
    row = catalog.component(name)
    assert row.spatial_compression is not None
    assert row.temporal_compression is not None
    per_frame = (extent.height_px // row.spatial_compression) * (extent.width_px // row.spatial_compression)
    return per_frame * ((num_frames - 1) // row.temporal_compression + 1)


def text_pass(
    forwards: Forwards,
    name: str,
    precision: Precision,
    num_samples: int,
    num_text_tokens: float,
    *,
    quantized: EncoderNumbers = "none",
) -> Pass:
    """Returns the pass of captions through one text encoder, loaded in the compute dtype or quantised.

    Quantised weights are dequantised for each product, so one dense layer is added to the pass. The kernels of a
    quantised layer are assumed to allocate what those of a dense layer do.
    """
    found = _plain_text_pass(forwards, name, precision, num_samples, num_text_tokens)
    if quantized == "none":
        return found
    row, per_weight = catalog.component(name), BYTES_PER_WEIGHT[precision]
    share = quantized_share(quantized, row, per_weight)
    return replace(
        found,
        weights_bytes=round(found.weights_bytes * share),
        dense_bytes=found.weights_bytes,
        widened_bytes=largest_dense_bytes(row, per_weight),
    )


def _plain_text_pass(
    forwards: Forwards, name: str, precision: Precision, num_samples: int, num_text_tokens: float
) -> Pass:
    traced = text_trace(forwards, name, precision)
    if traced is None:
        return _weights_alone(name, precision)
    form, trace = traced
    return _pass(name, trace, (num_samples, 1, num_text_tokens, 0), _scale(form.precision, precision, "text"))


def sampling_pass(forwards: Forwards, name: str, precision: Precision, sizes: Sizes) -> Pass:
    """Returns the denoiser's pass without gradients. Its weights belong to the training and are not counted here."""
    for candidate in _candidates(precision):
        trace = forwards(ForwardForm(component=name, kind="sample", precision=candidate))
        if trace is not None:
            return _pass(name, trace, sizes, _scale(candidate, precision, "sample"))
    return Pass(name, 0, (), f"{name}: its forward pass without gradients is not traced, so it is not counted")


def _candidates(precision: Precision) -> tuple[TracedPrecision, ...]:
    """Returns the traces to try, in order. tf32 has the bytes of fp32; bf16 has those of fp16 and half of fp32's."""
    return tuple(dict.fromkeys(("fp32" if precision == "tf32" else precision, "bf16")))


def _scale(traced: Precision, asked: Precision, kind: ForwardKind) -> int:
    return 1 if kind == "encode" else BYTES_PER_WEIGHT[asked] // BYTES_PER_WEIGHT[traced]


def _pass(name: str, trace: StepTrace, sizes: Sizes, scale: int) -> Pass:
    events = expand(trace, sizes)
    if scale != 1:
        events = [Event(e.storage, e.num_bytes * scale, e.category, e.phase) for e in events]
    weights = [event for event in events if event.category in WEIGHTS]
    # An autoencoder's weights are fp32 in every precision.
    weights_scale = 1 if trace.method == "decode" else scale
    weights_bytes = sum(bytes_by_category(weights).values()) // scale * weights_scale
    return Pass(name, weights_bytes, tuple(event for event in events if event.category not in WEIGHTS))


def _weights_alone(name: str, precision: Precision) -> Pass:
    num_bytes = catalog.component(name).num_params * BYTES_PER_WEIGHT[precision]
    return Pass(name, num_bytes, (), f"{name}: its forward pass is not traced, so only its weights are counted")
