"""What a whole job takes: set-up, download, caching, training, validation, saves; in seconds, energy and money."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from foretune import catalog
from foretune.catalog.devices import Device
from foretune.choices.experiment import Experiment
from foretune.core.units import disk_text, duration_text, share_text
from foretune.core.values.plan_time import JobCost, StepTime
from foretune.data.at_once import IN_A_BATCH, images_at_once
from foretune.planner.around import RunToPlan, guided_batch, passes_of_a_step
from foretune.planner.checkpoint_bytes import saved_bytes
from foretune.planner.sharding import num_shards
from foretune.planner.timing.passes import autoencoder_passes, denoising_s, passes_s, text_passes
from foretune.planner.timing.speed import DeviceSpeed, NotKnown
from foretune.planner.timing.step_time import PlannedStep, TimedTrace
from foretune.planner.timing.terms import HourlyPrice
from foretune.planner.timing.work_times import WorkTimes

_START_S = 60.0
"""Of the program: imports, the first use of the device, reading the data's index."""
_DOWNLOAD_BYTES_PER_S = 100e6
_DISK_BYTES_PER_S = 1e9
_LOAD_SHARE = 0.8
"""Of the power limit. Trainings of transformers that are bound by computation report 70 to 95 %."""
_FILE_BYTES_PER_WEIGHT = 2
_FLOPS_PER_WEIGHT = 2
S_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class JobWork:
    """What a job does, whatever it runs on. None is "not known"."""

    num_steps: int | None
    training_s: float | None
    """Where the length of the training is a time."""
    file_bytes: float
    is_caching_known: bool
    """Whether the images have been counted."""
    encodings: tuple[TimedTrace, ...]
    """All passes that fill the caches."""
    untimed_flops: float
    """Of text encoders without a trace."""
    num_validations: int | None
    num_held_out: int
    """Samples of one held-out loss."""
    num_denoising_passes: int
    """Passes of the denoiser for all samples of one validation."""
    guided_batch: int
    """Samples of one such pass."""
    decodings: tuple[TimedTrace, ...]
    """Of all samples of one validation."""
    saved_bytes: float
    num_saves: int
    save_every: int | None
    num_devices: int
    is_cpu: bool
    assumptions: tuple[str, ...]


def job_work(run: RunToPlan) -> JobWork:
    """Returns the work of a job. Raises `NotKnown` if the number of its steps is not known."""
    experiment, choice = run.experiment, run.experiment.validation
    train = experiment.train
    num_images = getattr(experiment.data, "num_samples", None)
    num_steps = train.steps
    if num_steps is None and train.epochs is not None:
        if num_images is None:
            raise NotKnown("the number of steps: train.epochs needs the number of images. Set train.steps instead")
        num_steps = train.epochs * math.ceil(num_images / experiment.samples_per_step())
    notes: list[str] = []
    num_encoded = _num_encoded(experiment, num_images, num_steps)
    encodings, untimed = _caching(run, num_encoded, notes)
    samples = len(choice.prompts) if run.around.samples else 0
    decodings = list(autoencoder_passes(run, "decode", 1, samples)) if samples else []
    notes += [f"decoding samples with {one} takes no time: it has no trace" for one in decodings if _is_name(one)]
    return JobWork(
        num_steps=num_steps,
        training_s=train.seconds,
        file_bytes=_FILE_BYTES_PER_WEIGHT * sum(_weights(run)),
        is_caching_known=num_encoded is not None or not (run.around.caches_latents or run.around.caches_text),
        encodings=encodings,
        untimed_flops=untimed,
        num_validations=_num_validations(run, num_steps, notes),
        num_held_out=choice.num_held_out if run.around.holds_out else 0,
        num_denoising_passes=samples * choice.num_inference_steps * passes_of_a_step(run),
        guided_batch=guided_batch(run),
        decodings=tuple(one for one in decodings if isinstance(one, TimedTrace)),
        saved_bytes=_saved_bytes(run) * _times(num_steps, experiment.save.every),
        num_saves=_times(num_steps, experiment.save.every),
        save_every=experiment.save.every,
        num_devices=experiment.parallel.devices,
        is_cpu=run.trains_on_host,
        assumptions=tuple(dict.fromkeys(notes)),
    )


@dataclass(frozen=True, kw_only=True)
class BesideSteps:
    """Seconds of a job on a device besides its steps. None is "not known"."""

    caching_s: float | None
    validation_s: float | None


def caching_seconds(work: JobWork, speed: DeviceSpeed, work_times: WorkTimes) -> float:
    """Returns the time in which the devices fill the caches together: encoders one after another."""
    each = (passes_s([one], speed, work_times, is_cpu=work.is_cpu) for one in work.encodings)
    return sum(each) / work.num_devices


def validation_seconds(work: JobWork, planned: PlannedStep, speed: DeviceSpeed, work_times: WorkTimes) -> float:
    """Returns the time of one validation.

    Devices share the batches of the held-out loss. One of them makes all samples while the others wait.
    """
    step, total_s = planned.step, 0.0
    if work.num_held_out:
        batch_size = step.size.batch_size
        num_batches = math.ceil(work.num_held_out / batch_size / work.num_devices)
        of_a_batch_s = denoising_s(planned, batch_size, speed, work_times)
        encoding_s = sum(passes_s([one], speed, work_times, is_cpu=work.is_cpu) for one in step.encoders)
        total_s += num_batches * (of_a_batch_s + encoding_s)
    if work.num_denoising_passes:
        total_s += work.num_denoising_passes * denoising_s(planned, work.guided_batch, speed, work_times)
        total_s += sum(passes_s([one], speed, work_times, is_cpu=work.is_cpu) for one in work.decodings)
    return total_s


def beside_steps(work: JobWork, planned: PlannedStep, speed: DeviceSpeed, work_times: WorkTimes) -> BesideSteps:
    caching_s = caching_seconds(work, speed, work_times) if work.is_caching_known else None
    if work.num_validations is None:
        return BesideSteps(caching_s=caching_s, validation_s=None)
    once_s = validation_seconds(work, planned, speed, work_times) if work.num_validations else 0.0
    return BesideSteps(caching_s=caching_s, validation_s=work.num_validations * once_s)


class JobTotals(NamedTuple):
    """The parts of a job in seconds, and its price."""

    set_up_s: float
    download_s: float
    caching_s: float | None
    training_s: float
    validation_s: float | None
    saves_s: float
    total_s: float
    usd: float | None


def job_totals(
    work: JobWork,
    device: Device,
    usd_per_hour: float | None,
    step_s: float,
    hardware_flops: float,
    beside: BesideSteps,
) -> JobTotals:
    """Returns what the job takes if a step takes `step_s`: grows with it, all else equal."""
    training_s = work.training_s if work.num_steps is None else work.num_steps * step_s
    assert training_s is not None, "a training has steps or a time"
    untimed_s = work.untimed_flops * step_s / (work.num_devices * hardware_flops)
    caching_s = None if beside.caching_s is None else beside.caching_s + untimed_s
    set_up_s = _START_S + work.file_bytes / _DISK_BYTES_PER_S
    download_s = work.file_bytes / _DOWNLOAD_BYTES_PER_S
    saves_s = work.saved_bytes / _DISK_BYTES_PER_S
    validation_s = beside.validation_s
    total_s = set_up_s + download_s + saves_s + (caching_s or 0.0) + training_s + (validation_s or 0.0)
    usd = None if usd_per_hour is None else usd_per_hour * num_cards(work, device) * total_s / S_PER_HOUR
    return JobTotals(set_up_s, download_s, caching_s, training_s, validation_s, saves_s, total_s, usd)


def num_cards(work: JobWork, device: Device) -> int:
    """Returns how many cards are rented: some are two devices to PyTorch."""
    return math.ceil(work.num_devices / device.num_logical_devices)


def job_cost(work: JobWork, time: StepTime, device: Device, price: HourlyPrice, beside: BesideSteps) -> JobCost:
    """Returns what the job takes on a device, from the time of one step."""
    found = job_totals(work, device, price.usd, time.step_s, time.hardware_flops, beside)
    total_s = found.total_s
    by_time = 0.0 if work.num_steps is None else total_s - found.set_up_s - found.download_s - found.saves_s
    power_w = None if device.tdp_w is None else device.tdp_w * _LOAD_SHARE * num_cards(work, device)
    return JobCost(
        num_steps=work.num_steps,
        set_up_s=found.set_up_s,
        download_s=found.download_s,
        caching_s=found.caching_s,
        training_s=found.training_s,
        validation_s=found.validation_s,
        saves_s=found.saves_s,
        total_s=total_s,
        low_s=total_s + by_time * (time.low_s / time.step_s - 1),
        high_s=total_s + by_time * (time.high_s / time.step_s - 1),
        energy_wh=None if power_w is None else power_w * total_s / S_PER_HOUR,
        usd=found.usd,
        usd_per_hour=price.usd,
        price_source=price.source,
        is_price_given=price.is_given,
        assumptions=(*_assumptions(work, power_w is not None), *work.assumptions),
    )


def _assumptions(work: JobWork, has_power: bool) -> Iterator[str]:
    files = disk_text(work.file_bytes)
    yield (
        f"the program starts in {duration_text(_START_S)}, and {files} of weights in 16 bits are downloaded at "
        f"{disk_text(_DOWNLOAD_BYTES_PER_S)}/s and read at {disk_text(_DISK_BYTES_PER_S)}/s"
    )
    yield f"checkpoints are written at {disk_text(_DISK_BYTES_PER_S)}/s"
    if work.encodings:
        yield "images and captions are cached as fast as their encoders compute; reading and decoding files is hidden"
    if work.num_denoising_passes:
        yield "sampling takes the forward part of a step for each pass of the denoiser, and decodes each sample alone"
    if has_power:
        yield f"the device draws {share_text(_LOAD_SHARE)} of its power limit; the rest of the machine is not counted"


def _weights(run: RunToPlan) -> Iterator[float]:
    yield run.denoiser.num_params
    system = run.denoiser.system
    if system is not None:
        names = [*system.text_encoders, *(name for name in (system.vae, system.image_encoder) if name is not None)]
        yield from (catalog.component(name).num_params for name in names)


def _num_encoded(experiment: Experiment, num_images: int | None, num_steps: int | None) -> int | None:
    if experiment.data.encoded is not None:
        return 0
    if num_images is None or num_steps is None:
        return num_images
    return min(num_images, num_steps * experiment.samples_per_step())


def _is_name(one: TimedTrace | str) -> bool:
    return isinstance(one, str)


def _caching(run: RunToPlan, num_images: int | None, notes: list[str]) -> tuple[tuple[TimedTrace, ...], float]:
    """Returns the passes that fill the caches, and the FLOPs of text encoders that have no trace."""
    around, system, num_prompts = run.around, run.denoiser.system, len(run.experiment.validation.prompts)
    if num_images == 0 or system is None or not (around.caches_latents or around.caches_text):
        return (), 0.0
    if num_images is None:
        notes.append("caching is not in the total: the images have not been counted")
        return (), 0.0
    found: list[TimedTrace | str] = []
    if around.caches_latents:
        at_once = images_at_once(run.extent.height_px, run.extent.width_px) if run.extent.num_frames == 1 else 1
        of_images = list(autoencoder_passes(run, "encode", at_once, math.ceil(num_images / at_once)))
        notes += [f"encoding images with {one} takes no time: it has no trace" for one in of_images if _is_name(one)]
        found += of_images
        if system.image_encoder is not None:
            notes.append(f"encoding first frames with {system.image_encoder} takes no time: it has no trace")
    untimed = 0.0
    if around.caches_text:
        # The prompts of validation, and the empty one that guides them.
        num_captions = num_images + (num_prompts + 1 if num_prompts else 0)
        of_text = list(text_passes(run, IN_A_BATCH, math.ceil(num_captions / IN_A_BATCH)))
        found += of_text
        for name in (one for one in of_text if isinstance(one, str)):
            notes.append(f"{name} encodes captions at the rate of the training step: it has no trace in this precision")
            untimed += (
                _FLOPS_PER_WEIGHT * catalog.component(name).num_linear_weight_params * run.sizes[2] * num_captions
            )
    return tuple(one for one in found if isinstance(one, TimedTrace)), untimed


def _num_validations(run: RunToPlan, num_steps: int | None, notes: list[str]) -> int | None:
    """Returns how often a run validates: before the first step, when it is due, and after the last."""
    if not run.around.validates:
        return 0
    if num_steps is None:
        notes.append("validation is not in the total: how often it is due depends on the steps")
        return None
    return 1 + _times(num_steps, run.experiment.validation.every)


def _saved_bytes(run: RunToPlan) -> float:
    parts: Iterable[list[int]] = saved_bytes(run.around)
    return sum(map(sum, parts)) * num_shards(run.experiment.parallel)


def _times(num_steps: int | None, every: int | None) -> int:
    """How often something is done that is due after every so many steps, and at the end."""
    if num_steps is None or every is None:
        return 1
    return -(-num_steps // every)
