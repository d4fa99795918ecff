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
from foretune.planner.around import RunToPlan, guided_batch
from foretune.planner.checkpoint_bytes import saved_bytes
from foretune.planner.sharding import num_shards
from foretune.planner.timing.speed import NotKnown
from foretune.planner.timing.terms import HourlyPrice

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
    caching_flops: float | None
    num_validation_passes: float | None
    """Samples that go forward through the denoiser."""
    passes_per_model_pass: float
    """Forward passes that have the FLOPs of one pass of the training without recomputation."""
    saved_bytes: float
    num_saves: int
    save_every: int | None
    num_devices: int
    samples_per_device: int
    """In one optimizer step."""
    assumptions: tuple[str, ...]


def job_work(run: RunToPlan) -> JobWork:
    """Returns the work of a job. Raises `NotKnown` if the number of its steps is not known."""
    experiment = run.experiment
    train = experiment.train
    num_images = getattr(experiment.data, "num_samples", None)
    num_steps = train.steps
    if num_steps is None and train.epochs is not None:
        if num_images is None:
            raise NotKnown("the number of steps: train.epochs needs the number of images. Set train.steps instead")
        num_steps = train.epochs * math.ceil(num_images / experiment.samples_per_step())
    notes: list[str] = []
    caching = _caching_flops(run, _num_encoded(experiment, num_images, num_steps), notes)
    validation = _num_validation_passes(run, num_steps, notes)
    return JobWork(
        num_steps=num_steps,
        training_s=train.seconds,
        file_bytes=_FILE_BYTES_PER_WEIGHT * sum(_weights(run)),
        caching_flops=caching,
        num_validation_passes=validation,
        # Frozen weights have no gradients.
        passes_per_model_pass=3.0 if experiment.method.kind == "full" else 2.0,
        saved_bytes=_saved_bytes(run) * _times(num_steps, experiment.save.every),
        num_saves=_times(num_steps, experiment.save.every),
        save_every=experiment.save.every,
        num_devices=experiment.parallel.devices,
        samples_per_device=train.batch_size * train.gradient_accumulation,
        assumptions=tuple(dict.fromkeys(notes)),
    )


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
    model_flops: float,
    hardware_flops: float,
) -> JobTotals:
    """Returns what the job takes if a step takes `step_s`: grows with it, all else equal."""
    training_s = work.training_s if work.num_steps is None else work.num_steps * step_s
    assert training_s is not None, "a training has steps or a time"
    s_per_flop = step_s / (work.num_devices * hardware_flops)
    forward_flops = model_flops / work.samples_per_device / work.passes_per_model_pass
    caching_s = None if work.caching_flops is None else work.caching_flops * s_per_flop
    passes = work.num_validation_passes
    validation_s = None if passes is None else passes * forward_flops * s_per_flop
    set_up_s = _START_S + work.file_bytes / _DISK_BYTES_PER_S
    download_s = work.file_bytes / _DOWNLOAD_BYTES_PER_S
    saves_s = work.saved_bytes / _DISK_BYTES_PER_S
    total_s = set_up_s + download_s + saves_s + (caching_s or 0.0) + training_s + (validation_s or 0.0)
    usd = None if usd_per_hour is None else usd_per_hour * num_cards(work, device) * total_s / S_PER_HOUR
    return JobTotals(set_up_s, download_s, caching_s, training_s, validation_s, saves_s, total_s, usd)


def num_cards(work: JobWork, device: Device) -> int:
    """Returns how many cards are rented: some are two devices to PyTorch."""
    return math.ceil(work.num_devices / device.num_logical_devices)


def job_cost(work: JobWork, time: StepTime, device: Device, price: HourlyPrice) -> JobCost:
    """Returns what the job takes on a device, from the time of one step."""
    found = job_totals(work, device, price.usd, time.step_s, time.model_flops, time.hardware_flops)
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
    yield "caching and validation compute as fast as the training step"
    if has_power:
        yield f"the device draws {share_text(_LOAD_SHARE)} of its power limit; the rest of the machine is not counted"


def _weights(run: RunToPlan) -> Iterator[float]:
    yield run.denoiser.num_params
    system = run.denoiser.system
    if system is not None:
        names = [*system.text_encoders, *(name for name in (system.vae, system.image_encoder) if name is not None)]
        yield from (catalog.component(name).num_params for name in names)


def _num_encoded(experiment: Experiment, num_images: int | None, num_steps: int | None) -> int | None:
    if num_images is None or num_steps is None:
        return num_images
    return min(num_images, num_steps * experiment.samples_per_step())


def _caching_flops(run: RunToPlan, num_images: int | None, notes: list[str]) -> float | None:
    """Returns the FLOPs of the text encoders: two for each weight of their linear layers and each token."""
    around = run.around
    if around.caches_latents:
        notes.append(f"encoding images with {around.vae_name} takes no time: its FLOPs are not counted")
    if not around.caches_text or run.denoiser.system is None:
        return 0.0
    if num_images is None:
        notes.append("caching is not in the total: the images have not been counted")
        return None
    encoders = [catalog.component(name) for name in run.denoiser.system.text_encoders]
    weights = sum(encoder.num_linear_weight_params for encoder in encoders)
    return _FLOPS_PER_WEIGHT * weights * run.sizes[2] * num_images


def _num_validation_passes(run: RunToPlan, num_steps: int | None, notes: list[str]) -> float | None:
    """Returns how many samples go forward through the denoiser in all validations."""
    around, choice = run.around, run.experiment.validation
    if not around.validates:
        return 0.0
    if num_steps is None:
        notes.append("validation is not in the total: how often it is due depends on the steps")
        return None
    passes = choice.num_held_out if around.holds_out else 0
    if around.samples:
        passes += len(choice.prompts) * choice.num_inference_steps * guided_batch(run)
        notes.append("decoding samples takes no time: its FLOPs are not counted")
    return passes * (1 + _times(num_steps, choice.every))


def _saved_bytes(run: RunToPlan) -> float:
    parts: Iterable[list[int]] = saved_bytes(run.around)
    return sum(map(sum, parts)) * num_shards(run.experiment.parallel)


def _times(num_steps: int | None, every: int | None) -> int:
    """How often something is done that is due after every so many steps, and at the end."""
    if num_steps is None or every is None:
        return 1
    return -(-num_steps // every)
