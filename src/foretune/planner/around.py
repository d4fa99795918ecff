"""The parts of a run around its training step: loaded encoders, validation, checksums of weights."""

from dataclasses import dataclass, replace
from functools import cached_property

from foretune import catalog
from foretune.catalog import ModelComponent
from foretune.choices.experiment import Experiment
from foretune.choices.memory_pieces import SUMMED_AT_ONCE
from foretune.core.vocabulary import MemoryPart, RunPhase
from foretune.data.at_once import IN_A_BATCH, images_at_once
from foretune.planner.block_events import Sizes
from foretune.planner.encoders import (
    BYTES_PER_WEIGHT,
    Extent,
    Forwards,
    Pass,
    autoencoder_pass,
    sampling_pass,
    text_pass,
)
from foretune.planner.expansion import StepEvents, bytes_by_category
from foretune.planner.quantized import FEWER_BITS, dense_over_bits
from foretune.planner.streams import Stream, lasting_only

_FP32_BYTES = 4
_CHECKSUM_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class RunToPlan:
    """The inputs from which the phases are computed."""

    experiment: Experiment
    denoiser: ModelComponent
    step: StepEvents
    """One training step on the largest bucket, with everything that outlives it."""
    sizes: Sizes
    """The sizes at which the step was expanded."""
    extent: Extent
    forwards: Forwards
    num_images: int | None = None
    """None if the data has not been counted."""
    most_swapped_bytes: int = 0
    """The most weights of swapped blocks that a forward pass has on the device: of the one that runs, and of those that
    are copied ahead."""
    gathered_bytes: int = 0
    """Whole weights on the device in a pass without gradients, if the weights are sharded."""
    trains_on_host: bool = False
    """Whether the CPU is the device, so that its memory is the host's."""

    @cached_property
    def around(self) -> "Around":
        return Around(self)


class Around:
    """The components besides the denoiser, which of them stay loaded, and what outlives the step."""

    def __init__(self, run: RunToPlan) -> None:
        levers, train, system = run.experiment.levers, run.experiment.train, run.denoiser.system
        self.lasting = run.step.lasting
        self.lasting_on_host = lasting_only(run.step.on_host)
        self.notes: tuple[str, ...] = ()
        batch = train.batch_size
        self.vae_name = system.vae if system is not None else None
        self.caches_latents = self.vae_name is not None and levers.cache_latents
        names = system.text_encoders if system is not None else ()
        self.has_text = bool(names) or bool(system is not None and system.not_in_catalogue)
        self.caches_text = self.has_text and levers.cache_text
        num_images = batch
        if self.caches_latents:
            is_image = run.extent.num_frames == 1
            num_images = images_at_once(run.extent.height_px, run.extent.width_px) if is_image else 1
        self.encode: Pass | None = None
        if self.vae_name is not None:
            self.encode = autoencoder_pass(
                run.forwards,
                self.vae_name,
                "encode",
                train.precision,
                run.extent,
                num_images,
                tiled=levers.vae_tiling,
            )
        num_captions = IN_A_BATCH if self.caches_text else batch
        self.texts = [
            text_pass(
                run.forwards,
                name,
                train.precision,
                num_captions,
                run.sizes[2],
                quantized=run.experiment.quantize.text_encoders,
            )
            for name in names
        ]
        choice = run.experiment.validation
        self.samples = bool(choice.prompts)
        self.holds_out = run.experiment.data.held_out > 0 and choice.num_held_out > 0
        self.validates = self.samples or self.holds_out
        if system is None:
            self.notes = (f"{run.denoiser.name}: its text encoders and autoencoder are not in the catalogue",)
        elif system.not_in_catalogue:
            self.notes = tuple(f"{name}: not in the catalogue, so not counted" for name in system.not_in_catalogue)
        # The encoder of a given first frame is loaded together with the autoencoder.
        self.image_encoder_bytes = 0
        if system is not None and system.image_encoder is not None:
            weight_bytes = BYTES_PER_WEIGHT[train.precision]
            self.image_encoder_bytes = catalog.component(system.image_encoder).num_params * weight_bytes

    @property
    def text_bytes(self) -> int:
        return sum(text.weights_bytes for text in self.texts)

    @property
    def dense_text_bytes(self) -> int:
        """Bytes of the text encoders before quantisation."""
        return sum(text.dense_bytes or text.weights_bytes for text in self.texts)

    @property
    def lasting_host_bytes(self) -> int:
        """Bytes in host memory between steps."""
        return sum(event.num_bytes for event in self.lasting_on_host)

    @property
    def encoder_bytes(self) -> int:
        """Bytes of the autoencoder and of the encoder of first frames."""
        return 0 if self.encode is None else self.encode.weights_bytes + self.image_encoder_bytes

    @property
    def live_vae_bytes(self) -> int:
        return 0 if self.caches_latents else self.encoder_bytes

    @property
    def live_text_bytes(self) -> int:
        return self.text_bytes if self.has_text and not self.caches_text else 0


def play_pass(stream: Stream, found: Pass, phase: str) -> None:
    """Adds one pass: everything it allocates is temporary, except for autocast's cached weights."""
    parts = {
        event.category: MemoryPart.TEMPORARIES for event in found.events if event.category != MemoryPart.CAST_WEIGHTS
    }
    beside = stream.hold(found.widened_bytes + found.stitched_bytes, MemoryPart.TEMPORARIES, phase)
    stream.play(found.events, phase, parts)
    stream.release(beside, MemoryPart.TEMPORARIES, phase)


def hold_live(stream: Stream, around: Around, phase: str) -> None:
    """Keeps encoders on the device whose results are not cached."""
    stream.hold(around.live_vae_bytes, MemoryPart.AUTOENCODER, phase)
    stream.hold(around.live_text_bytes, MemoryPart.TEXT_ENCODERS, phase)


def play_live(stream: Stream, around: Around, phase: str) -> None:
    """Adds `training.encoding.LiveEncoders.ready`."""
    if around.live_vae_bytes and around.encode is not None:
        play_pass(stream, around.encode, phase)
    if around.live_text_bytes:
        for text in around.texts:
            play_pass(stream, text, phase)


def play_validation(stream: Stream, run: RunToPlan, around: Around) -> tuple[str, ...]:
    """Adds `training.validating.Validator`: held-out loss, then samples. Returns notes on what is unknown."""
    name, precision = RunPhase.VALIDATE, run.experiment.train.precision
    _, positions, tokens, rank = run.sizes
    used: list[Pass] = []
    cast_bytes = _cast_bytes(run, around)
    if around.holds_out:
        used.append(sampling_pass(run.forwards, run.denoiser.name, precision, run.sizes))
        cast = stream.hold(cast_bytes, MemoryPart.CAST_WEIGHTS, name)
        _play_denoiser(stream, run, around, used[-1], name)
        stream.release(cast, MemoryPart.CAST_WEIGHTS, name)
    if around.samples:
        decoding = []
        if around.vae_name is not None:
            tiled = run.experiment.levers.vae_tiling
            decoding = [
                autoencoder_pass(run.forwards, around.vae_name, "decode", precision, run.extent, 1, tiled=tiled)
            ]
        vae = stream.hold(sum(d.weights_bytes for d in decoding), MemoryPart.AUTOENCODER, name)
        cast = stream.hold(cast_bytes, MemoryPart.CAST_WEIGHTS, name)
        sizes = (guided_batch(run), positions, tokens, rank)
        sampling = [sampling_pass(run.forwards, run.denoiser.name, precision, sizes), *decoding]
        _play_denoiser(stream, run, around, sampling[0], name)
        for found in decoding:
            play_pass(stream, found, name)
        stream.release(cast, MemoryPart.CAST_WEIGHTS, name)
        stream.release(vae, MemoryPart.AUTOENCODER, name)
        used += sampling
    return notes_of(*used)


def _play_denoiser(stream: Stream, run: RunToPlan, around: Around, found: Pass, phase: str) -> None:
    """Adds a pass through the denoiser; swapped weights are on the device for a few blocks at a time.

    The pass is traced with a dense base. For a quantised base, one dequantised layer is added.
    """
    brought = stream.hold(run.most_swapped_bytes, MemoryPart.SWAPPED_WEIGHTS, phase)
    gathered = stream.hold(run.gathered_bytes, MemoryPart.GATHERED_WEIGHTS, phase)
    bits = (event.num_bytes for event in around.lasting if event.category == MemoryPart.FROZEN_WEIGHTS)
    factor = dense_over_bits(run.experiment.quantize.denoiser, BYTES_PER_WEIGHT[run.experiment.train.precision])
    play_pass(stream, replace(found, widened_bytes=max(bits, default=0) * factor), phase)
    stream.release(gathered, MemoryPart.GATHERED_WEIGHTS, phase)
    stream.release(brought, MemoryPart.SWAPPED_WEIGHTS, phase)


def _cast_bytes(run: RunToPlan, around: Around) -> int:
    """Returns the bytes of autocast's low-precision copies of the trained fp32 weights."""
    train = run.experiment.train
    if train.precision == "fp32" or train.weight_dtype != "fp32" or run.experiment.gathers_in_bf16:
        return 0
    trained_bytes = bytes_by_category(around.lasting).get(MemoryPart.TRAINED_WEIGHTS, 0)
    return trained_bytes * BYTES_PER_WEIGHT[train.precision] // _FP32_BYTES


def guided_batch(run: RunToPlan) -> int:
    """Returns how many samples the denoiser sees at once for one image."""
    scale, facts = run.experiment.validation.guidance_scale, run.denoiser.family_facts
    return 2 if facts.guides_in_one_batch and (scale is None or scale > facts.unguided_scale) else 1


def passes_of_a_step(run: RunToPlan) -> int:
    """Returns how often the denoiser runs in one denoising step."""
    scale, facts = run.experiment.validation.guidance_scale, run.denoiser.family_facts
    return 2 if facts.guides_in_two_passes and (scale is None or scale > facts.unguided_scale) else 1


def play_checksum(stream: Stream, run: RunToPlan, around: Around, phase: str) -> None:
    """Adds `step.weights.checksums`, which sums each tensor's bits as int64 and needs copies of parts in that dtype."""
    train = run.experiment.train
    is_quantized = run.experiment.quantize.denoiser in FEWER_BITS
    sizes: dict[str, int] = {
        MemoryPart.FROZEN_WEIGHTS: 1 if is_quantized else BYTES_PER_WEIGHT[train.precision],
        MemoryPart.TRAINED_WEIGHTS: BYTES_PER_WEIGHT[train.weight_dtype],
    }
    largest = max(
        (min(e.num_bytes // sizes[e.category], SUMMED_AT_ONCE) for e in around.lasting if e.category in sizes),
        default=0,
    )
    stream.release(stream.hold(largest * _CHECKSUM_BYTES, MemoryPart.TEMPORARIES, phase), MemoryPart.TEMPORARIES, phase)


def notes_of(*passes: Pass) -> tuple[str, ...]:
    """Returns the notes on unknown facts of passes, without duplicates."""
    return tuple(dict.fromkeys(p.note for p in passes if p.note is not None))
