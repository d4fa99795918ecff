"""Every phase of a run: its device memory, host memory and disk space.

Each phase names the function that runs it in a training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from foretune import catalog
from foretune.choices.run_schedule import PREPARATION, RunSchedule
from foretune.core.units import MIB
from foretune.core.values.plan import PhaseMemory, Tensor
from foretune.core.values.step_trace import on_host
from foretune.core.vocabulary import LASTING, MemoryPart, RunPhase, StepPhase
from foretune.data.at_once import IN_A_BATCH
from foretune.planner.around import (
    Around,
    RunToPlan,
    hold_live,
    notes_of,
    play_checksum,
    play_live,
    play_pass,
    play_validation,
)
from foretune.planner.block_events import CUDA_ROUNDING_BYTES, Event
from foretune.planner.checkpoint_bytes import background_copy_bytes, saved_bytes
from foretune.planner.encoders import BYTES_PER_WEIGHT, latent_positions
from foretune.planner.expansion import bytes_by_category
from foretune.planner.live_memory import find_peak
from foretune.planner.pinned import pinned_rounding_bytes
from foretune.planner.quantized import FEWER_BITS
from foretune.planner.sharding import num_shards
from foretune.planner.streams import Stream

TRAINING = "training"
"""Loading, steps and saving, between which the allocator keeps its cache."""
# The program with torch (CPU build), diffusers, transformers and peft imported: 390 MB were measured. The additional
# memory of a build for an accelerator is not included.
_PROCESS_BYTES = 400 * MIB
# Most published checkpoints are stored in half precision; if one is not, its files are twice as large.
_FILE_BYTES_PER_WEIGHT = 2
_FP32_BYTES = 4
_PIXEL_BYTES = 3
_NUM_LARGEST = 12
# The first step differs from all others, which are alike.
_NUM_REPLAYED = 2


@dataclass(frozen=True)
class PhaseHostMemory:
    """The host memory of a phase besides the process itself."""

    num_bytes: int
    mapped_bytes: int = 0
    """The part of it that is pages of weight files."""
    pinned: Sequence[Event] = ()
    """Allocations and releases of the pinned part."""


@dataclass(frozen=True)
class Phase:
    """One phase: its figures, and the allocations behind them."""

    memory: PhaseMemory
    occurs: bool
    events: tuple[Event, ...]
    """Events on an empty device: resident storages are allocated first."""
    disk_bytes_per_sample: int | None = None
    """Set if its disk space grows with the data."""
    notes: tuple[str, ...] = ()
    """What is unknown, and so not in the figures."""
    mapped_bytes: int = 0
    """The part of the host memory that is pages of weight files, which the system can drop and read again."""
    pinned_rounding_bytes: int = 0
    """Host memory beyond `memory.host_bytes`, because pinned blocks are rounded up."""

    @property
    def name(self) -> str:
        return self.memory.phase

    @cached_property
    def largest(self) -> tuple[Tensor, ...]:
        """The storages that take most of the device at the peak."""
        peak = find_peak(self.events, CUDA_ROUNDING_BYTES, _NUM_LARGEST)
        return tuple(Tensor(part=part, num_bytes=size, count=count) for part, size, count in peak.largest)


def plan_phases(run: RunToPlan, *, validates: bool = True) -> tuple[Phase, ...]:
    """Returns all phases of a run, including those that this run does not have; on request without validation."""
    around = run.around
    return tuple(_PLANNED[name](run, around) for name in RunPhase if validates or name != RunPhase.VALIDATE)


def worst_phase(phases: Sequence[Phase]) -> Phase:
    """Returns the phase that decides whether the run fits: of those that must succeed, the largest on the device."""
    decisive = (phase for phase in phases if phase.occurs and phase.name != RunPhase.VALIDATE)
    return max(decisive, key=lambda phase: phase.memory.device_bytes)


def replay_streams(run: RunToPlan) -> tuple[tuple[str, tuple[Event, ...]], ...]:
    """Returns the allocations that must succeed: one stream per empty pool, each event with its phase.

    After each cache the pool is emptied (`training.encoding.free_memory`); from loading on it is not. Validation is
    left out: if it runs out of memory, this is recorded and the training continues (`training.loop.Loop._attempted`).
    """
    around = run.around
    caches = (_PLANNED[name](run, around) for name in PREPARATION if name is not RunPhase.LOAD)
    rows = [(phase.name, phase.events) for phase in caches if phase.occurs]
    return (*rows, (TRAINING, _training_stream(run, around, validates=False)))


def validation_stream(run: RunToPlan) -> tuple[Event, ...] | None:
    """Returns training with a validation before the first step and after a later one; None if the run has none."""
    around = run.around
    return _training_stream(run, around, validates=True) if around.validates else None


def _training_stream(run: RunToPlan, around: Around, *, validates: bool) -> tuple[Event, ...]:
    """Returns loading and the schedule of a run of two steps. Saving takes no memory of a device of its own."""
    stream = Stream()
    hold_live(stream, around, RunPhase.LOAD)
    states = [event for event in around.lasting if event.category == MemoryPart.OPTIMIZER_STATE]
    stream.run([event for event in around.lasting if event.category != MemoryPart.OPTIMIZER_STATE], keeps=LASTING)
    play_checksum(stream, run, around, RunPhase.LOAD)
    for phase, done in RunSchedule.of(run.experiment).phases(0, is_last=lambda done: done == _NUM_REPLAYED):
        if phase is RunPhase.VALIDATE and validates:
            play_validation(stream, run, around)
        elif phase is RunPhase.STEP and done == 1:
            stream.run_step(run.step, states)
        elif phase is RunPhase.STEP:
            play_live(stream, around, RunPhase.STEP)
            copy = stream.hold(background_copy_bytes(run, around), MemoryPart.CHECKPOINT_COPY, RunPhase.STEP)
            stream.run_step(run.step)
            stream.release(copy, MemoryPart.CHECKPOINT_COPY, RunPhase.STEP)
    return tuple(stream.events)


def _caching_latents(run: RunToPlan, around: Around) -> Phase:
    """`training.encoding.EncoderPlan.fill_latents`: the autoencoder in fp32, and the encoder of first frames."""
    name = RunPhase.CACHE_LATENTS
    if around.encode is None or not around.caches_latents or run.experiment.data.encoded is not None:
        return _absent(name, around.notes if run.denoiser.system is None else ())
    stream = Stream()
    stream.hold(around.encoder_bytes, MemoryPart.AUTOENCODER, name)
    play_pass(stream, around.encode, name)
    assert around.vae_name is not None
    channels = catalog.component(around.vae_name).latent_channels or 0
    # Mean and log-variance, in fp32.
    positions = latent_positions(around.vae_name, run.extent, run.extent.num_frames)
    entry_bytes = 2 * channels * positions * _FP32_BYTES
    flips = 2 if 0 < run.experiment.data.flip < 1 else 1
    num_loaded = 1 if run.denoiser.family_facts.is_video else IN_A_BATCH
    pixels_bytes = num_loaded * 3 * run.extent.height_px * run.extent.width_px * run.extent.num_frames * _FP32_BYTES
    return _phase(
        run,
        name,
        stream,
        # The images individually and as a batch.
        host=_loaded(around.encoder_bytes, _FP32_BYTES, beside_bytes=2 * pixels_bytes),
        disk_bytes_per_sample=entry_bytes * flips,
        notes=notes_of(around.encode),
    )


def _caching_text(run: RunToPlan, around: Around) -> Phase:
    """`training.encoding.EncoderPlan.fill_text`: all text encoders at once, in the compute dtype, pass by pass.

    Encoders that are quantised are first loaded unquantised to the host.
    """
    name = RunPhase.CACHE_TEXT
    # An encoded set has the prompts of its experiment, too.
    if not around.caches_text or run.experiment.data.encoded is not None:
        return _absent(name)
    stream = Stream()
    stream.hold(around.live_vae_bytes, MemoryPart.AUTOENCODER, name)
    stream.hold(around.text_bytes, MemoryPart.TEXT_ENCODERS, name)
    for text in around.texts:
        play_pass(stream, text, name)
    per_weight = BYTES_PER_WEIGHT[run.experiment.train.precision]
    return _phase(
        run,
        name,
        stream,
        host=_loaded(around.dense_text_bytes, per_weight, beside_bytes=around.quantized_text_bytes),
        disk_bytes_per_sample=_caption_bytes(run, around),
        notes=(*around.notes, *notes_of(*around.texts)),
    )


def _loading(run: RunToPlan, around: Around) -> Phase:
    """`training.preparing.prepare`: loads weights to the host, then moves each to the device and sums it there."""
    name, stream = RunPhase.LOAD, Stream()
    hold_live(stream, around, name)
    weights = [e for e in around.lasting if e.category != MemoryPart.OPTIMIZER_STATE]
    stream.run(weights, keeps=LASTING)
    play_checksum(stream, run, around, name)
    totals = bytes_by_category(weights)
    frozen_bytes, trained_bytes = totals.get(MemoryPart.FROZEN_WEIGHTS, 0), totals.get(MemoryPart.TRAINED_WEIGHTS, 0)
    swapped_bytes = bytes_by_category(around.lasting_on_host).get(on_host(MemoryPart.FROZEN_WEIGHTS), 0)
    trains_base = run.experiment.method.kind == "full"
    per_weight = BYTES_PER_WEIGHT[run.experiment.train.weight_dtype if trains_base else run.experiment.train.precision]
    if run.experiment.quantize.denoiser in FEWER_BITS:
        # The weights as stored in the file, plus their quantised copy.
        host = _loaded(run.denoiser.num_params * per_weight, per_weight, beside_bytes=frozen_bytes + swapped_bytes)
    elif num_shards(run.experiment.parallel) > 1:
        # Each process loads the whole model, and shards it block by block.
        host = _loaded(run.denoiser.num_params * per_weight, per_weight)
    else:
        host = _loaded(trained_bytes if trains_base else frozen_bytes + swapped_bytes, per_weight)
    # Swapped weights are a pinned copy.
    copies = [event for event in around.lasting_on_host if event.category == on_host(MemoryPart.FROZEN_WEIGHTS)]
    host = replace(host, num_bytes=host.num_bytes + swapped_bytes, pinned=copies)
    system = run.denoiser.system
    names = [] if system is None else [n for n in (system.vae, *system.text_encoders, system.image_encoder) if n]
    num_weights = run.denoiser.num_params + sum(catalog.component(n).num_params for n in names)
    return _phase(
        run,
        name,
        stream,
        host=host,
        disk_bytes=num_weights * _FILE_BYTES_PER_WEIGHT,
        notes=around.notes,
    )


def _training_step(run: RunToPlan, around: Around) -> Phase:
    """`training.loop.Loop.steps`: the step, after encoding its images and captions if they are not cached."""
    name, stream = RunPhase.STEP, Stream()
    hold_live(stream, around, name)
    stream.run(around.lasting, keeps=LASTING)
    body = run.step.passing
    if around.live_vae_bytes or around.live_text_bytes:
        # Accumulated gradients exist while the next images are encoded.
        accumulated = body[: _start_of(body, StepPhase.INPUTS)]
        stream.run(accumulated, keeps={event.category for event in accumulated})
        play_live(stream, around, name)
        stream.run(body[len(accumulated) :])
    else:
        stream.run_step(run.step)
    num_waiting = 2 * run.experiment.data.num_workers + 2
    moved_bytes = find_peak(run.step.on_host, num_largest=0).num_bytes
    host = PhaseHostMemory(
        run.step.passing_bytes[MemoryPart.INPUTS] * num_waiting + moved_bytes, pinned=run.step.on_host
    )
    return _phase(run, name, stream, host=host, notes=around.notes)


def _validation(run: RunToPlan, around: Around) -> Phase:
    """`training.validating.Validator`: no gradients, beside all training state; the VAE is loaded for samples.

    The moving average replaces the weights without a copy.
    """
    name, stream = RunPhase.VALIDATE, Stream()
    if not around.validates:
        return _absent(name)
    hold_live(stream, around, name)
    stream.run(around.lasting, keeps=LASTING)
    notes = play_validation(stream, run, around)
    num_pixels = run.extent.height_px * run.extent.width_px * run.extent.num_frames
    sampled = around.samples and around.encode is not None
    weights_bytes = around.encode.weights_bytes if sampled and around.encode is not None else 0
    return _phase(
        run,
        name,
        stream,
        host=replace(
            _loaded(weights_bytes, _FP32_BYTES, beside_bytes=around.lasting_host_bytes), pinned=around.lasting_on_host
        ),
        disk_bytes=len(run.experiment.validation.prompts) * num_pixels * _PIXEL_BYTES * _num_validations(run),
        notes=(*around.notes, *notes),
    )


def _saving(run: RunToPlan, around: Around) -> Phase:
    """`training.checkpoints.CheckpointStore.write_files`: copies what a file holds to the host and writes it.

    The oldest checkpoint is removed only after the newest is complete.
    """
    name, stream = RunPhase.SAVE, Stream()
    hold_live(stream, around, name)
    stream.run(around.lasting, keeps=LASTING)
    stream.hold(background_copy_bytes(run, around), MemoryPart.CHECKPOINT_COPY, name)
    components, on_the_host = saved_bytes(around)
    shards = num_shards(run.experiment.parallel)
    # Whole tensors are one file for each component; shards of all of them are one file of each process.
    copied_bytes = sum(components) if shards > 1 else max(components)
    if run.experiment.save.asynchronous:
        copied_bytes = sum((*components, *on_the_host))
    return _phase(
        run,
        name,
        stream,
        # On the host nothing needs to be copied.
        host=PhaseHostMemory(
            0 if run.trains_on_host else copied_bytes + around.lasting_host_bytes, pinned=around.lasting_on_host
        ),
        disk_bytes=sum((*components, *on_the_host)) * shards * (run.experiment.save.keep + 1),
    )


_PLANNED: dict[RunPhase, Callable[[RunToPlan, Around], Phase]] = {
    RunPhase.CACHE_LATENTS: _caching_latents,
    RunPhase.CACHE_TEXT: _caching_text,
    RunPhase.LOAD: _loading,
    RunPhase.STEP: _training_step,
    RunPhase.VALIDATE: _validation,
    RunPhase.SAVE: _saving,
}


# ---- shared by the phases


def _start_of(events: Sequence[Event], phase: str) -> int:
    return next((index for index, event in enumerate(events) if event.phase == phase), len(events))


def _loaded(num_bytes: int, bytes_per_weight: int, *, beside_bytes: int = 0) -> PhaseHostMemory:
    """Returns the host memory while weights are loaded.

    Files are memory-mapped: weights in the file's own dtype are its pages, and only those in another dtype are
    additional copies. Measured with 851 MiB of bf16: 860 MiB in bf16, 2,670 MiB in fp32, without the process itself.
    """
    file_bytes = num_bytes // bytes_per_weight * _FILE_BYTES_PER_WEIGHT
    copied_bytes = 0 if bytes_per_weight == _FILE_BYTES_PER_WEIGHT else num_bytes
    return PhaseHostMemory(file_bytes + copied_bytes + beside_bytes, mapped_bytes=file_bytes)


def _caption_bytes(run: RunToPlan, around: Around) -> int:
    """Returns a sample's input bytes without latents, noise and level (which are fp32), in the cached dtype."""
    num_samples = run.sizes[0]
    num_latents = 0
    if around.vae_name is not None:
        channels = catalog.component(around.vae_name).latent_channels or 0
        num_latents = channels * latent_positions(around.vae_name, run.extent, run.extent.num_frames)
    # Mean and log-variance, the sample drawn from them, and the noise.
    latent_bytes = 4 * num_latents * _FP32_BYTES
    given = run.step.passing_bytes[MemoryPart.INPUTS] / num_samples - latent_bytes
    return max(0, round(given * BYTES_PER_WEIGHT[run.experiment.train.precision] / _FP32_BYTES))


def _num_validations(run: RunToPlan) -> int:
    """Counts validations before the first step, after the last, and in between."""
    train, every = run.experiment.train, run.experiment.validation.every
    return 2 + (max(0, train.steps - 1) // every if train.steps is not None and every is not None else 0)


def _absent(name: str, notes: tuple[str, ...] = ()) -> Phase:
    return Phase(PhaseMemory(phase=name, device_bytes_by_part={}), occurs=False, events=(), notes=notes)


def _phase(
    run: RunToPlan,
    name: str,
    stream: Stream,
    *,
    host: PhaseHostMemory,
    disk_bytes: int | None = 0,
    disk_bytes_per_sample: int | None = None,
    notes: tuple[str, ...] = (),
) -> Phase:
    peak = find_peak(stream.events, CUDA_ROUNDING_BYTES)
    if disk_bytes_per_sample is not None:
        disk_bytes = None if run.num_images is None else disk_bytes_per_sample * _num_encoded(run, run.num_images)
    # If the host is the device, loaded weights are the device's memory; only waiting batches are added.
    is_beside = name == RunPhase.STEP
    with_device_bytes = host.num_bytes + peak.num_bytes if is_beside else max(host.num_bytes, peak.num_bytes)
    memory = PhaseMemory(
        phase=name,
        device_bytes_by_part=dict(sorted(peak.by_category.items(), key=lambda item: -item[1])),
        host_bytes=_PROCESS_BYTES + (with_device_bytes if run.trains_on_host else host.num_bytes),
        disk_bytes=disk_bytes,
    )
    return Phase(
        memory,
        True,
        tuple(stream.events),
        disk_bytes_per_sample,
        tuple(dict.fromkeys(notes)),
        mapped_bytes=host.mapped_bytes,
        pinned_rounding_bytes=pinned_rounding_bytes(host.pinned),
    )


def _num_encoded(run: RunToPlan, num_images: int) -> int:
    """Returns the number of encoded images: a run that is shorter than an epoch encodes only what it will use."""
    steps = run.experiment.train.steps
    return num_images if steps is None else min(num_images, steps * run.experiment.samples_per_step())
