"""The forward passes around a training step: encoders, the denoiser that samples, the decoder; and how long they take.

Each is timed with its own trace, as the step is with its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from foretune.choices.forward_form import ForwardKind
from foretune.core.values.step_trace import OUTSIDE
from foretune.data.at_once import TILE_OVERLAP
from foretune.planner.around import RunToPlan
from foretune.planner.encoders import TracedPass, autoencoder_trace, latent_positions, text_trace, tile_of
from foretune.planner.swapping import moved_bytes
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from foretune.planner.timing.step_time import PlannedStep, StepParts, StepSeconds, TimedTrace, summed
from foretune.planner.timing.work_times import PASS, Part, Times, WorkTimes
from foretune.planner.traces import variant_of


def autoencoder_passes(
    run: RunToPlan, kind: ForwardKind, num_samples: int, num_passes: float
) -> Iterator[TimedTrace | str]:
    """Yields the passes of `num_samples` images or clips through the autoencoder; its name if it has no trace.

    Tiles at the border are smaller, and take as much less.
    """
    system = run.denoiser.system
    if system is None or system.vae is None:
        return
    extent, levers = run.extent, run.experiment.levers
    tile = tile_of(extent) if levers.vae_tiling else extent
    tiles = _tiles(extent.height_px, tile.height_px) * _tiles(extent.width_px, tile.width_px)
    traced = autoencoder_trace(run.forwards, system.vae, kind, run.experiment.train.precision, tile)
    positions = latent_positions(system.vae, tile, tile.num_frames)
    if kind == "encode" and takes_first_frame(run):
        num_passes *= 2  # the clip, and its first frame with nothing behind it
    # In 16 bits, the trace of one format stands for the other.
    is_like = traced is not None and (kind == "encode" or _is_wide(traced.form.precision) == _computes_wide(run))
    if traced is None or not is_like:
        yield system.vae
        return
    yield _passes(traced, (num_samples, positions, 0, 0), num_passes * tiles)


def text_passes(run: RunToPlan, num_captions: int, num_passes: float) -> Iterator[TimedTrace | str]:
    """Yields the passes of captions through each text encoder; its name if it has no trace."""
    system, quantized = run.denoiser.system, run.experiment.quantize.text_encoders
    for name in () if system is None else system.text_encoders:
        traced = text_trace(run.forwards, name, run.experiment.train.precision)
        if traced is None or _is_wide(traced.form.precision) != _computes_wide(run):
            yield name
            continue
        layer = "" if quantized == "none" else quantized
        yield _passes(traced, (num_captions, 1, run.sizes[2], 0), num_passes, layer)


def takes_first_frame(run: RunToPlan) -> bool:
    """Whether the model continues a given frame, which is encoded beside each clip: it has channels for it."""
    config = run.denoiser.config
    if run.denoiser.family_facts.image_pipeline_class_name is None:
        return False
    channels = [config.get(name) for name in ("in_channels", "out_channels")]
    return None not in channels and channels[0] != channels[1]


def live_encoders(run: RunToPlan) -> tuple[TimedTrace, ...]:
    """Returns what encodes images and captions before each pass of a step, because they are not cached."""
    levers, batch_size = run.experiment.levers, round(run.sizes[0])
    found: list[TimedTrace | str] = []
    if not levers.cache_latents:
        found += autoencoder_passes(run, "encode", batch_size, 1)
    if not levers.cache_text:
        found += text_passes(run, batch_size, 1)
    traced = [one for one in found if isinstance(one, TimedTrace)]
    if missing := [one for one in found if isinstance(one, str)]:
        raise NotKnown(f"the time of {', '.join(missing)}, which encodes in each step: there is no trace of it")
    return tuple(traced)


def _passes(traced: TracedPass, sizes: tuple[float, float, float, float], often: float, layer: str = "") -> TimedTrace:
    parts: Mapping[Part, float] = {(PASS, OUTSIDE): often}
    return TimedTrace(trace=traced.trace, sizes=sizes, layer=layer, how_often=parts)


def _tiles(side_px: int, tile_px: int) -> float:
    """Returns how many tiles a side is cut into, a smaller one in proportion."""
    stride_px = max(1, int(tile_px * (1 - TILE_OVERLAP)))
    if tile_px >= side_px:
        return 1.0
    return sum(min(tile_px, side_px - start) for start in range(0, side_px, stride_px)) / tile_px


def _is_wide(precision: str) -> bool:
    return precision in ("fp32", "tf32")


def _computes_wide(run: RunToPlan) -> bool:
    return _is_wide(run.experiment.train.precision)


def denoising_s(planned: PlannedStep, batch_size: int, speed: DeviceSpeed, work_times: WorkTimes) -> float:
    """Returns the time of one pass of the denoiser without gradients: the forward part of the step's own trace.

    Swapped blocks come to the device once in a pass.
    """
    step = planned.step
    passes = step.experiment.train.gradient_accumulation
    traces = []
    for one in planned.traces:
        often = {part: times / passes for part, times in one.how_often.items() if part[0] == PASS}
        if often:
            traces.append(replace(one, sizes=(batch_size, *one.sizes[1:]), how_often=often, only_forward=True))
    bus_s = 0.0
    if step.experiment.levers.block_swap and not step.is_cpu:
        kept = planned.traces[0]
        swapped = variant_of(step.experiment, step.geometry).swapped
        bus_s = speed.copy_s(sum(moved_bytes(kept.trace, kept.sizes, swapped)))
    return passes_s(traces, speed, work_times, bus_s=bus_s, is_cpu=step.is_cpu)


def passes_s(
    traces: Iterable[TimedTrace], speed: DeviceSpeed, work_times: WorkTimes, *, bus_s: float = 0.0, is_cpu: bool
) -> float:
    """Returns the time of passes that follow each other without a pause."""
    return passes_seconds(traces, speed, work_times, bus_s=bus_s, is_cpu=is_cpu).step_s


def passes_seconds(
    traces: Iterable[TimedTrace], speed: DeviceSpeed, work_times: WorkTimes, *, bus_s: float = 0.0, is_cpu: bool
) -> StepSeconds:
    """The same with each resource."""
    total = Times()
    for one in traces:
        total = total.plus(summed(one, speed, work_times))
    operators_s = total.num_operators * speed.launch_s()
    return StepParts(total=total, by_part={}, operators_s=operators_s, bus_s=bus_s, is_cpu=is_cpu).seconds()
