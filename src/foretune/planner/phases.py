"""Every phase of a run: its device memory, host memory and disk space.

Each phase names the function that runs it in a training.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from foretune import catalog
from foretune.choices.memory_pieces import averaged_copies_bytes
from foretune.choices.run_schedule import PREPARATION, RunSchedule
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
from foretune.planner.block_events import Event
from foretune.planner.checkpoint_bytes import background_copy_bytes, saved_bytes
from foretune.planner.encoders import BYTES_PER_WEIGHT, latent_positions
from foretune.planner.expansion import bytes_by_category
from foretune.planner.live_memory import find_peak
from foretune.planner.phase_memory import FILE_BYTES_PER_WEIGHT, Phase, PhaseHostMemory, absent, loaded, phase_of
from foretune.planner.sharding import num_shards
from foretune.planner.streams import Stream

TRAINING = "training"
"""Loading, steps and saving, between which the allocator keeps its cache."""
_FP32_BYTES = 4
_PIXEL_BYTES = 3
# The first step differs from all others, which are alike.
_NUM_REPLAYED = 2


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

    After each cache the pool is emptied (`accelerator.memory.free_memory`); from loading on it is not. Validation is
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
        elif phase is RunPhase.STEP:
            beside = stream.hold(_copied_beside_bytes(run), MemoryPart.TEMPORARIES, RunPhase.STEP)
            if done == 1:
                stream.run_step(run.step, states)
            else:
                play_live(stream, around, RunPhase.STEP)
                copy = stream.hold(background_copy_bytes(run, around), MemoryPart.CHECKPOINT_COPY, RunPhase.STEP)
                stream.run_step(run.step)
                stream.release(copy, MemoryPart.CHECKPOINT_COPY, RunPhase.STEP)
            stream.release(beside, MemoryPart.TEMPORARIES, RunPhase.STEP)
    return tuple(stream.events)


def _caching_latents(run: RunToPlan, around: Around) -> Phase:
    """`training.encoding.EncoderPlan.fill_latents`: the autoencoder in fp32, and the encoder of first frames."""
    name = RunPhase.CACHE_LATENTS
    if around.encode is None or not around.caches_latents or run.experiment.data.encoded is not None:
        return absent(name, around.notes if run.denoiser.system is None else ())
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
    return phase_of(
        run,
        name,
        stream,
        # The images individually and as a batch.
        host=loaded(around.encoder_bytes, _FP32_BYTES, beside_bytes=2 * pixels_bytes),
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
        return absent(name)
    stream = Stream()
    stream.hold(around.live_vae_bytes, MemoryPart.AUTOENCODER, name)
    stream.hold(around.text_bytes, MemoryPart.TEXT_ENCODERS, name)
    for text in around.texts:
        play_pass(stream, text, name)
    per_weight = BYTES_PER_WEIGHT[run.experiment.train.precision]
    return phase_of(
        run,
        name,
        stream,
        host=loaded(around.dense_text_bytes, per_weight),
        disk_bytes_per_sample=_caption_bytes(run, around),
        notes=(*around.notes, *notes_of(*around.texts)),
    )


def _loading(run: RunToPlan, around: Around) -> Phase:
    """`training.base_loading.load_base`: reads, quantises and moves the weights layer by layer."""
    name, stream = RunPhase.LOAD, Stream()
    hold_live(stream, around, name)
    weights = [e for e in around.lasting if e.category != MemoryPart.OPTIMIZER_STATE]
    stream.run(weights, keeps=LASTING)
    play_checksum(stream, run, around, name)
    swapped_bytes = bytes_by_category(around.lasting_on_host).get(on_host(MemoryPart.FROZEN_WEIGHTS), 0)
    trains_base = run.experiment.method.kind == "full"
    if num_shards(run.experiment.parallel) > 1:
        # Each process loads the whole model, and shards it block by block.
        per_weight = BYTES_PER_WEIGHT[
            run.experiment.train.weight_dtype if trains_base else run.experiment.train.precision
        ]
        host = loaded(run.denoiser.num_params * per_weight, per_weight)
    else:
        # Each layer is quantised, or put into its dtype, and moved before the next one is read.
        host = loaded(run.denoiser.num_params * FILE_BYTES_PER_WEIGHT, FILE_BYTES_PER_WEIGHT)
    # Swapped weights are a pinned copy.
    copies = [event for event in around.lasting_on_host if event.category == on_host(MemoryPart.FROZEN_WEIGHTS)]
    host = replace(host, num_bytes=host.num_bytes + swapped_bytes, pinned=copies)
    system = run.denoiser.system
    names = [] if system is None else [n for n in (system.vae, *system.text_encoders, system.image_encoder) if n]
    num_weights = run.denoiser.num_params + sum(catalog.component(n).num_params for n in names)
    return phase_of(
        run,
        name,
        stream,
        host=host,
        disk_bytes=num_weights * FILE_BYTES_PER_WEIGHT,
        notes=around.notes,
    )


def _training_step(run: RunToPlan, around: Around) -> Phase:
    """`training.loop.Loop.steps`: the step, after encoding its images and captions if they are not cached."""
    name, stream = RunPhase.STEP, Stream()
    hold_live(stream, around, name)
    stream.run(around.lasting, keeps=LASTING)
    stream.hold(_copied_beside_bytes(run), MemoryPart.TEMPORARIES, name)
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
    if run.experiment.train.ema is not None and run.experiment.levers.ema_offload:
        trained_bytes = bytes_by_category(around.lasting).get(MemoryPart.TRAINED_WEIGHTS, 0)
        moved_bytes += averaged_copies_bytes(trained_bytes)
    host = PhaseHostMemory(
        run.step.passing_bytes[MemoryPart.INPUTS] * num_waiting + moved_bytes, pinned=run.step.on_host
    )
    return phase_of(run, name, stream, host=host, notes=around.notes)


def _validation(run: RunToPlan, around: Around) -> Phase:
    """`training.validating.Validator`: no gradients, beside all training state; the VAE is loaded for samples.

    The moving average replaces the weights without a copy.
    """
    name, stream = RunPhase.VALIDATE, Stream()
    if not around.validates:
        return absent(name)
    hold_live(stream, around, name)
    stream.run(around.lasting, keeps=LASTING)
    notes = play_validation(stream, run, around)
    num_pixels = run.extent.height_px * run.extent.width_px * run.extent.num_frames
    sampled = around.samples and around.encode is not None
    weights_bytes = around.encode.weights_bytes if sampled and around.encode is not None else 0
    return phase_of(
        run,
        name,
        stream,
        host=replace(
            loaded(weights_bytes, _FP32_BYTES, beside_bytes=around.lasting_host_bytes), pinned=around.lasting_on_host
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
    return phase_of(
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


def _copied_beside_bytes(run: RunToPlan) -> int:
    """Returns what activation offload takes for a copy beside computation: one storage, the largest.

    It leaves or returns while others compute (`step.levers.offloading.Traffic`). A CPU copies in turn. Where only
    attention is offloaded, each attention waits for its copies before the next begins. In composed attention the
    largest are the probabilities, of which each attention has one; beside it, the next in size is copied.
    """
    levers = run.experiment.levers
    if run.trains_on_host or not levers.activation_offload:
        return 0
    sizes = sorted({event.num_bytes for event in run.step.on_host if event.phase == StepPhase.FORWARD}, reverse=True)
    has_probabilities = levers.activation_offload_parts == "attention" and levers.attention == "math"
    return next(iter(sizes[1:] if has_probabilities else sizes), 0)


def _start_of(events: Sequence[Event], phase: str) -> int:
    return next((index for index, event in enumerate(events) if event.phase == phase), len(events))


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
