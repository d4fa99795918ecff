"""What follows a training: evaluate, sample and export, each in a process of its own, with its phases.

They run as the training did: on its device, in its precision, with its quantised base. Text encoders are freed before
the denoiser is loaded, and the denoiser is loaded layer by layer (`training.sampling_setup`). Block swap, offloading
and sharding belong to training, so that all weights are on one device here.

Not counted: what the metrics of an evaluation load (CLIP, DINO), and images or clips that were requested in another
size than the trained one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from foretune.choices.picture_size import small_num_frames, small_sides_px
from foretune.core.values.step_trace import on_host
from foretune.core.vocabulary import Command, CommandPhase, MemoryPart
from foretune.data.at_once import CAPTIONS_AT_ONCE
from foretune.planner.around import Around, RunToPlan, guided_batch, notes_of, play_pass
from foretune.planner.block_events import Event
from foretune.planner.encoders import BYTES_PER_WEIGHT, Extent, Pass, autoencoder_pass, sampling_pass, text_pass
from foretune.planner.expansion import bytes_by_category
from foretune.planner.phase_memory import FILE_BYTES_PER_WEIGHT, Phase, PhaseHostMemory, loaded, phase_of
from foretune.planner.quantized import dense_over_bits
from foretune.planner.sharding import num_shards
from foretune.planner.sizing import StepSize
from foretune.planner.streams import Stream
from foretune.trace.shipped import Geometry

_FP32_BYTES = 4
_WITH_EMPTY_CAPTION = 2
"""Captions that a check encodes: its own and an empty one."""


@dataclass(frozen=True)
class CommandPhases:
    """One command and its phases in order; the allocator's cache is emptied between them."""

    command: Command
    phases: tuple[Phase, ...]
    optional: frozenset[str] = frozenset()
    """Phases that are left out if they do not fit."""

    @cached_property
    def deciding(self) -> tuple[Phase, ...]:
        """The phases that must fit."""
        return tuple(phase for phase in self.phases if phase.name not in self.optional)

    @property
    def worst(self) -> Phase:
        """The phase with the most device memory."""
        return max(self.deciding, key=lambda phase: phase.memory.device_bytes)


@dataclass(frozen=True)
class _Pictures:
    """What is sampled at once."""

    extent: Extent
    positions: float
    """Latent positions of a sample in the denoiser."""


def plan_commands(run: RunToPlan, size: StepSize, geometry: Geometry) -> tuple[CommandPhases, ...]:
    """Returns the commands after a training."""
    pictures = _Pictures(run.extent, run.sizes[1])
    sampled = tuple(_sampling(run, pictures, CAPTIONS_AT_ONCE, (CommandPhase.ENCODE_TEXT, CommandPhase.SAMPLE)))
    evaluated = (*sampled, _held_out(run)) if run.around.holds_out else sampled
    checks = (CommandPhase.CHECK_TEXT, CommandPhase.CHECK)
    checked = tuple(_sampling(run, _small(size, geometry), _WITH_EMPTY_CAPTION, checks))
    return (
        CommandPhases(Command.EVALUATE, evaluated),
        CommandPhases(Command.SAMPLE, sampled),
        CommandPhases(Command.EXPORT, (_writing(run), *checked), frozenset(checks)),
    )


def _sampling(
    run: RunToPlan, pictures: _Pictures, num_captions: int, names: tuple[CommandPhase, CommandPhase]
) -> Iterator[Phase]:
    """`training.sampling_setup.SamplingSetup`: captions, then images."""
    around, precision = run.around, run.experiment.train.precision
    if around.texts:
        yield _encoding_text(run, around, num_captions, names[0])
    stream, name = _with_denoiser(run, around, names[1]), names[1]
    decoding = list(_decoding(run, around, pictures.extent))
    stream.hold(sum(one.weights_bytes for one in decoding) + around.image_encoder_bytes, MemoryPart.AUTOENCODER, name)
    _, _, tokens, rank = run.sizes
    sizes = (guided_batch(run), pictures.positions, tokens, rank)
    denoising = sampling_pass(run.forwards, run.denoiser.name, precision, sizes)
    _play_denoiser(stream, run, denoising, name)
    for one in decoding:
        play_pass(stream, one, name)
    notes = (*around.notes, *notes_of(denoising, *decoding))
    yield phase_of(run, name, stream, host=_loading(run, around), notes=notes)


def _encoding_text(run: RunToPlan, around: Around, num_captions: int, name: CommandPhase) -> Phase:
    """All text encoders at once, whole on the host before they are quantised."""
    precision, quantized = run.experiment.train.precision, run.experiment.quantize.text_encoders
    texts = [
        text_pass(run.forwards, text.component, precision, num_captions, run.sizes[2], quantized=quantized)
        for text in around.texts
    ]
    stream = Stream()
    stream.hold(around.text_bytes, MemoryPart.TEXT_ENCODERS, name)
    for text in texts:
        play_pass(stream, text, name)
    host = loaded(around.dense_text_bytes, BYTES_PER_WEIGHT[precision])
    return phase_of(run, name, stream, host=host, notes=(*around.notes, *notes_of(*texts)))


def _held_out(run: RunToPlan) -> Phase:
    """The loss of held-out samples: the autoencoder encodes, the denoiser predicts, in batches of the training."""
    around, name = run.around, CommandPhase.HELD_OUT
    stream = _with_denoiser(run, around, name)
    encoding = [] if around.encode is None else [around.encode]
    stream.hold(around.encoder_bytes, MemoryPart.AUTOENCODER, name)
    for one in encoding:
        play_pass(stream, one, name)
    predicting = sampling_pass(run.forwards, run.denoiser.name, run.experiment.train.precision, run.sizes)
    _play_denoiser(stream, run, predicting, name)
    notes = (*around.notes, *notes_of(predicting, *encoding))
    return phase_of(run, name, stream, host=_loading(run, around), notes=notes)


def _writing(run: RunToPlan) -> Phase:
    """`training.export_files`: an adapter without its base; a whole model tensor by tensor."""
    trained_bytes = _whole_bytes(run, run.around, MemoryPart.TRAINED_WEIGHTS)
    num_trained = trained_bytes // BYTES_PER_WEIGHT[run.experiment.train.weight_dtype]
    file_bytes = num_trained * BYTES_PER_WEIGHT[run.experiment.train.precision]
    if run.experiment.method.kind == "full":
        # Pages of the checkpoint and of the file, and one tensor.
        largest = max((event.num_bytes for event in _trained(run.around)), default=0)
        pages = trained_bytes + file_bytes
        host = PhaseHostMemory(pages + 2 * largest, mapped_bytes=pages)
    else:
        # In fp32, and rounded; what was written is read back.
        host = PhaseHostMemory(num_trained * _FP32_BYTES + 2 * file_bytes)
    return phase_of(run, CommandPhase.WRITE, Stream(), host=host, disk_bytes=file_bytes)


def _with_denoiser(run: RunToPlan, around: Around, name: CommandPhase) -> Stream:
    """Returns a stream with all weights on the device: those of the base as stored, trained ones in the precision."""
    stream, shards = Stream(), num_shards(run.experiment.parallel)
    frozen = [event for event in around.lasting if event.category == MemoryPart.FROZEN_WEIGHTS]
    swapped = [event for event in around.lasting_on_host if event.category == on_host(MemoryPart.FROZEN_WEIGHTS)]
    for event in (*frozen, *swapped):
        stream.hold(event.num_bytes * shards, MemoryPart.FROZEN_WEIGHTS, name)
    train = run.experiment.train
    for event in _trained(around):
        num_bytes = event.num_bytes * shards * BYTES_PER_WEIGHT[train.precision] // BYTES_PER_WEIGHT[train.weight_dtype]
        stream.hold(num_bytes, MemoryPart.TRAINED_WEIGHTS, name)
    return stream


def _play_denoiser(stream: Stream, run: RunToPlan, found: Pass, name: CommandPhase) -> None:
    """Adds a pass; of a quantised base one dequantised layer is added, because the trace is of a dense one."""
    factor = dense_over_bits(run.experiment.quantize.denoiser, BYTES_PER_WEIGHT[run.experiment.train.precision])
    frozen = (event.num_bytes for event in stream.events if event.category == MemoryPart.FROZEN_WEIGHTS)
    play_pass(stream, replace(found, widened_bytes=max(frozen, default=0) * factor), name)


def _decoding(run: RunToPlan, around: Around, extent: Extent) -> Iterator[Pass]:
    if around.vae_name is not None:
        precision, tiled = run.experiment.train.precision, run.experiment.levers.vae_tiling
        yield autoencoder_pass(run.forwards, around.vae_name, "decode", precision, extent, 1, tiled=tiled)


def _loading(run: RunToPlan, around: Around) -> PhaseHostMemory:
    """Host memory while a denoiser is loaded layer by layer: pages of its files, and the autoencoder in fp32."""
    pages = loaded(run.denoiser.num_params * FILE_BYTES_PER_WEIGHT, FILE_BYTES_PER_WEIGHT)
    return replace(pages, num_bytes=pages.num_bytes + around.encoder_bytes)


def _small(size: StepSize, geometry: Geometry) -> _Pictures:
    """The size at which an export is checked."""
    width_px, height_px = small_sides_px(size.width_px, size.height_px, geometry.size_multiple_px)
    num_frames = small_num_frames(size.num_frames, geometry.temporal_factor)
    small = replace(size, width_px=width_px, height_px=height_px, num_frames=num_frames)
    return _Pictures(small.extent(geometry), small.in_trace(geometry)[1])


def _trained(around: Around) -> list[Event]:
    return [event for event in around.lasting if event.category == MemoryPart.TRAINED_WEIGHTS]


def _whole_bytes(run: RunToPlan, around: Around, part: MemoryPart) -> int:
    """Returns the bytes of a part on the device, whole if it is sharded."""
    return bytes_by_category(around.lasting).get(part, 0) * num_shards(run.experiment.parallel)
