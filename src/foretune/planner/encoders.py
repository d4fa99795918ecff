"""The forward passes around a training step: which trace tells of them, and at which sizes it is run."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from foretune import catalog
from foretune.choices.forward_form import ForwardForm, ForwardKind, TracedPrecision
from foretune.choices.quantize import EncoderNumbers
from foretune.choices.training import Precision
from foretune.core.values.step_trace import StepTrace
from foretune.core.vocabulary import WEIGHTS
from foretune.data.at_once import TILE_OVERLAP, TILE_PX, VIDEO_TILE_PX
from foretune.planner.expansion import Event, Sizes, expand
from foretune.planner.quantized import largest_dense_bytes, quantized_share
from foretune.planner.streams import bytes_by_category

Forwards = Callable[[ForwardForm], StepTrace | None]
"""Finds the trace of a forward pass; None where there is none."""

BYTES_PER_WEIGHT: dict[Precision, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_FP32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The pictures or videos of one bucket."""

    height_px: int
    width_px: int
    num_frames: int = 1
    usual_num_frames: int = 1
    """The length that the model's autoencoder is traced for."""


@dataclass(frozen=True)
class Pass:
    """A component's weights, and what one pass through it allocates beside them."""

    component: str
    weights_bytes: int
    events: tuple[Event, ...]
    note: str | None = None
    """What is not known of it."""
    dense_bytes: int = 0
    """What its weights took before they were quantised; 0 where they are not."""
    widened_bytes: int = 0
    """Of the largest layer of a quantised component, as it is multiplied with."""
    stitched_bytes: int = 0
    """Of tiles that wait to be put together, and of what they are put together to."""


def autoencoder_pass(
    forwards: Forwards,
    name: str,
    kind: ForwardKind,
    precision: Precision,
    extent: Extent,
    num_samples: int,
    *,
    tiled: bool = False,
) -> Pass:
    """Images or videos through the autoencoder, one way or the other. Its weights are fp32 in both.

    In tiles, one tile is computed at a time; all of them wait in fp32 until they are put together.

    A video of another length than the traced one is taken to need what one of the traced length would, or what its
    positions would if there are more of them: pieces of frames do not grow with their number, so that is the most.
    """
    if tiled and (tile := _tile(extent)) != extent:
        of_one_tile = autoencoder_pass(forwards, name, kind, precision, tile, num_samples)
        return replace(of_one_tile, stitched_bytes=_stitched_bytes(extent) * num_samples if kind == "decode" else 0)
    by_precision: tuple[TracedPrecision, ...] = ("fp32",) if kind == "encode" else _candidates(precision)
    frames = tuple(dict.fromkeys((extent.num_frames, extent.usual_num_frames)))
    for num_frames in frames:
        for candidate in by_precision:
            form = ForwardForm(component=name, kind=kind, precision=candidate, num_frames=num_frames)
            trace = forwards(form)
            if trace is not None:
                positions = max(latent_positions(name, extent, count) for count in (num_frames, extent.num_frames))
                found = _pass(name, trace, (num_samples, positions, 0, 0), _scale(candidate, precision, kind))
                return replace(found, note=_of_another_length(name, extent, num_frames))
    return _weights_alone(name, "fp32")


def _tile(extent: Extent) -> Extent:
    side_px = TILE_PX if extent.num_frames == 1 else VIDEO_TILE_PX
    return replace(extent, height_px=min(side_px, extent.height_px), width_px=min(side_px, extent.width_px))


def _stitched_bytes(extent: Extent) -> int:
    """Decoded tiles with their overlaps, and the whole picture or video. Latents are too small to count."""
    num_values = 3 * extent.height_px * extent.width_px * extent.num_frames
    return round(num_values * _FP32_BYTES * (1 + 1 / (1 - TILE_OVERLAP) ** 2))


def _of_another_length(name: str, extent: Extent, traced_num_frames: int) -> str | None:
    """A short video would take less than is counted for it, which nobody would guess from the figure."""
    if extent.num_frames >= traced_num_frames:
        return None
    asked = "1 frame" if extent.num_frames == 1 else f"{extent.num_frames} frames"
    return f"{name}: what it takes for {asked}; what it takes for {traced_num_frames} is counted, which is more"


def latent_positions(name: str, extent: Extent, num_frames: int) -> int:
    """Of a sample as the autoencoder makes it; a denoiser may see several of them as one."""
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
    """Captions through one text encoder, loaded in the type that training computes in, or in fewer bits.

    Fewer bits are widened for each product: one dense layer is there beside what the pass allocates. What the kernels
    of a quantised layer allocate beside it is taken to be what a dense layer's do.
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
    for candidate in _candidates(precision):
        trace = forwards(ForwardForm(component=name, kind="text", precision=candidate))
        if trace is not None:
            sizes = (num_samples, 1, num_text_tokens, 0)
            return _pass(name, trace, sizes, _scale(candidate, precision, "text"))
    return _weights_alone(name, precision)


def sampling_pass(forwards: Forwards, name: str, precision: Precision, sizes: Sizes) -> Pass:
    """The denoiser without gradients. Its weights are the training's and not counted here."""
    for candidate in _candidates(precision):
        trace = forwards(ForwardForm(component=name, kind="sample", precision=candidate))
        if trace is not None:
            return _pass(name, trace, sizes, _scale(candidate, precision, "sample"))
    return Pass(name, 0, (), f"{name}: its forward pass without gradients is not traced, so it is not counted")


def _candidates(precision: Precision) -> tuple[TracedPrecision, ...]:
    """fp16 has the bytes of bf16, and fp32 twice as many, where there is no trace of its own; tf32 those of fp32."""
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
