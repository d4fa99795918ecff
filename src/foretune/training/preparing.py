"""Everything before the first step: the model found, the data ordered, the caches filled, the step built."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter
from foretune.choices.training import Train
from foretune.core.errors import Refused
from foretune.core.given_devices import num_given_devices
from foretune.core.observer import Observer
from foretune.core.values.base import content_hash
from foretune.data.batch import Batch
from foretune.data.buckets import Bucket
from foretune.data.encoded import EncodedSet, source_of
from foretune.data.grouping import buckets_for, order_for, refuse_short_clips
from foretune.data.held_out import HeldOutBatches, held_out_batches
from foretune.data.maker import BatchMaker
from foretune.data.order import StepOrder
from foretune.data.sources import Source, has_captions, open_source, scan
from foretune.data.split import split
from foretune.models.adapters import checksums_of_read
from foretune.models.family import Conditioning, Family
from foretune.models.locating import open_family
from foretune.models.trainable import TrainableFamily
from foretune.step.building import Assembled, assemble, attach_method, build_step
from foretune.step.engine import ALONE as ONE_PROCESS
from foretune.step.engine import share
from foretune.step.methods import AppliedMethod
from foretune.step.methods.adapter import AppliedAdapter
from foretune.step.optimizing import require_optimizer
from foretune.step.precision import PrecisionPolicy
from foretune.step.quantizing import check_quantization
from foretune.step.training_step import TrainingStep
from foretune.step.weights import num_trained_and_all
from foretune.training.base_loading import base_of
from foretune.training.devices import (
    choose_device,
    device_warnings,
    fail_when_full,
    refuse_own_dropout,
    refuse_what_the_device_cannot,
    use_threads,
)
from foretune.training.encoded_sets.settings import with_encoded_set
from foretune.training.encoding import EncoderPlan, Encoding, LiveEncoders
from foretune.training.first_frames import FirstFrame, first_frames
from foretune.training.places import DevicePlace, places_of
from foretune.training.ranks import ALONE, Ranks
from foretune.training.sizes import text_tokens, training_size


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that can start."""

    experiment: Experiment
    family: TrainableFamily
    folder: Path | None
    """None where the weights are random."""
    device: torch.device
    method: AppliedMethod
    step: TrainingStep
    batch_maker: Dataset[Batch]
    encoders: LiveEncoders
    held_out: Sequence[Batch] | HeldOutBatches
    """Made once, or at each validation where they are large: clips that are not cached."""
    encoded_prompts: Sequence[Conditioning]
    """The validation prompts, each with a batch of one."""
    unconditional: Conditioning | None
    num_steps: int | None
    """None where the run ends when its time is up."""
    size: Bucket
    """Of the largest bucket, and of samples."""
    num_text_tokens: int
    effective: dict[str, Any]
    """What followed from the experiment: everything that was not asked for by number."""
    first_frames: tuple[Image.Image, ...] = ()
    """For models that continue a given frame, that of each validation prompt."""
    ranks: Ranks = ALONE
    """Which process of the run this is."""
    places: tuple[DevicePlace, ...] = ()
    """Where each process of the run computes, by rank."""


def prepare(experiment: Experiment, folder: Path, observer: Observer, ranks: Ranks = ALONE) -> Prepared:
    """From an experiment and its model's folder to a run that can start, in each of its processes."""
    family = open_family(folder)
    read_adapters = checked_adapters(experiment, family)
    device = checked_device(experiment, family, observer, ranks)
    places = places_of(ranks, device)
    size = training_size(experiment, family)
    family.objective(experiment.objective)  # refuses a model that was trained with one that is not known
    num_text_tokens = text_tokens(experiment, family)
    encoder_plan = with_encoded_set(
        encoder_plan_of(experiment, family, folder, device, num_text_tokens), experiment, size
    )
    source = opened_data(experiment, family, size, observer, encoder_plan.encoded)
    train, held_out = split(source, experiment.data.held_out)
    held_out = held_out[: experiment.validation.num_held_out]
    maker = _batch_maker(experiment, family, encoder_plan, source, train, size, ranks)
    for part in (train, held_out):
        refuse_short_clips(source, part, maker.buckets, family.frames_per_latent())
    num_steps = _num_steps(experiment.train, maker.order)
    prompts = experiment.validation.prompts if family.text_parts else ()
    needed = _needed(maker.order, num_steps, train, has_all_buckets=not experiment.data.only_largest_bucket)
    num_unused = len(train) - len(needed)
    encoding = Encoding(encoder_plan, maker, needed, num_unused, held_out, prompts, observer, ranks)
    # In the order of `choices.run_schedule.PREPARATION`, which plans replay.
    live_vae, live_image_encoder = encoding.latents()
    shown = held_out if len(held_out) else train
    frames = first_frames(encoder_plan, source, shown, size, len(prompts), live_image_encoder)
    live_text, texts = encoding.text()
    built = build_model(experiment, family, folder, device, observer, ranks)
    held_out_maker = dataclasses.replace(maker, seed=experiment.validation.seed)
    return Prepared(
        experiment=experiment,
        family=family,
        folder=folder,
        device=device,
        method=built.method,
        step=built.step,
        batch_maker=maker,
        encoders=LiveEncoders(family, live_vae, live_text, num_text_tokens, live_image_encoder),
        held_out=_held_out(held_out_maker, held_out, family),
        encoded_prompts=_encoded_prompts(prompts, texts, frames),
        unconditional=_batched(texts[""]) if "" in texts else None,
        num_steps=num_steps,
        size=size,
        num_text_tokens=num_text_tokens,
        effective={
            **built.effective,
            **_effective_data(experiment, source, maker, train, held_out, num_steps),
            **built.hashes(experiment, source.fingerprint(), read_adapters),
            **size.facts(),
            "num_text_tokens": num_text_tokens,
        },
        first_frames=tuple(frame.image for frame in frames),
        ranks=ranks,
        places=places,
    )


def _held_out(maker: BatchMaker, held_out: Sequence[int], family: Family) -> Sequence[Batch] | HeldOutBatches:
    if not len(held_out):
        return []
    batches = held_out_batches(maker, held_out)
    return batches if family.is_video and maker.latents is None else list(batches)


def encoder_plan_of(
    experiment: Experiment, family: TrainableFamily, folder: Path, device: torch.device, num_text_tokens: int
) -> EncoderPlan:
    return EncoderPlan(
        family=family,
        folder=folder,
        device=device,
        text_dtype=PrecisionPolicy.of(experiment.train).compute_dtype,
        num_text_tokens=num_text_tokens,
        cache_dir=Path(experiment.data.cache_dir).expanduser(),
        text_numbers=experiment.quantize.text_encoders,
        vae_tiling=experiment.levers.vae_tiling,
    )


def _encoded_prompts(
    prompts: Sequence[str], texts: dict[str, Conditioning], frames: Sequence[FirstFrame]
) -> list[Conditioning]:
    of_frames = [frame.conditioning for frame in frames] or [{} for _ in prompts]
    return [_batched({**texts[prompt], **of_frame}) for prompt, of_frame in zip(prompts, of_frames, strict=True)]


def opened_data(
    experiment: Experiment, family: TrainableFamily, size: Bucket, observer: Observer, encoded: EncodedSet | None = None
) -> Source:
    """To train without captions can be meant; more often they have another name or lie elsewhere."""
    if encoded is not None:
        return source_of(encoded, experiment.data)
    source = open_source(experiment.data, largest=size)
    what, example = ("clips", "1.mp4") if experiment.data.kind == "clips" else ("images", "1.png")
    scan(source, lambda done, total: observer.preparing(f"reading {what}", done, total), what)
    for note in source.notes():
        observer.warning(note)
    if family.text_parts and not has_captions(source):
        observer.warning(
            f"None of the {len(source)} {what} has a caption, so all are trained with an empty one. If that is not "
            f"meant: a text file beside each (1.txt beside {example}), a metadata.jsonl, or data.trigger for all."
        )
    return source


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model with everything attached to it, where it will run."""

    method: AppliedMethod
    step: TrainingStep
    base_checksum: str
    effective: dict[str, Any]

    def hashes(self, experiment: Experiment, data_fingerprint: str, read_adapters: dict[str, str]) -> dict[str, Any]:
        """What tells this run from others. Adapters that it reads are part of the model it begins with."""
        base = self.base_checksum
        model = content_hash({"base": base, **read_adapters}) if read_adapters else base
        return {
            "base_checksum": base,
            **({"read_adapters": read_adapters} if read_adapters else {}),
            "question_hash": experiment.question_hash(data_fingerprint, model),
            "experiment_hash": experiment.whole_hash(),
        }


def build_model(
    experiment: Experiment,
    family: TrainableFamily,
    folder: Path | None,
    device: torch.device,
    observer: Observer,
    ranks: Ranks = ALONE,
) -> Built:
    """Loads the denoiser, attaches the method and the levers, and builds the step around it.

    Without a folder its weights are random.
    """
    engine, parallel = ONE_PROCESS, experiment.parallel
    base = base_of(experiment, family, folder, device, observer)
    denoiser = base.denoiser
    assembled = assemble(experiment, family, denoiser, quantize_on=device, quantized=base.quantized)
    if parallel.sharding == "none":
        assembled.levers.place(denoiser, device)
    # FSDP2 moves one block after the other and keeps its part: the whole model need not fit on a device.
    if ranks.size > 1:
        group = parallel.shard_devices or ranks.local_size
        gathers_in_bf16 = experiment.gathers_in_bf16
        engine = share(
            denoiser, family, parallel.sharding, device, group, parallel.timeout_s, gathers_in_bf16=gathers_in_bf16
        )
    step = build_step(experiment, family, assembled, device, engine=engine)
    return Built(
        method=assembled.method,
        step=step,
        base_checksum=base.checksum,
        effective=_effective_model(family, folder, device, assembled, step),
    )


def checked_adapters(experiment: Experiment, family: Family) -> dict[str, str]:
    """Checksums of the adapters that are read. What cannot be attached is refused before anything is loaded."""
    checksums_by_key = checksums_of_read(experiment.method)
    if isinstance(experiment.method, Adapter):
        attach_method(experiment, family, family.denoiser_on_meta(torch.float32))
    return checksums_by_key


def checked_device(experiment: Experiment, family: Family, observer: Observer, ranks: Ranks = ALONE) -> torch.device:
    """The device to run on; what it or the installed libraries cannot do is refused before anything is loaded."""
    if experiment.parallel.devices != ranks.size:
        raise Refused(
            f"parallel.devices: {experiment.parallel.devices} devices are used by train, resume, bench and study; this "
            f"runs on {ranks.size}. Nearest: parallel.devices={ranks.size}"
        )
    use_threads(experiment.parallel.threads)
    device = choose_device(experiment.parallel.device, ranks.local_rank)
    refuse_what_the_device_cannot(experiment, family.name, device)
    refuse_own_dropout(experiment, family, device)
    check_quantization(experiment.quantize, device)
    require_optimizer(experiment.optimizer)
    for text in device_warnings(experiment, device):
        observer.warning(text)
    if num_given_devices():  # a trial of a sweep, which may look for the largest batch
        fail_when_full(device)
    return device


def _num_steps(train: Train, order: StepOrder) -> int | None:
    """Optimizer steps; None where a time is asked for."""
    return None if train.seconds is not None else train.steps or (train.epochs or 0) * order.num_steps_per_epoch


def _batch_maker(
    experiment: Experiment,
    family: TrainableFamily,
    encoder_plan: EncoderPlan,
    source: Source,
    train: Sequence[int],
    largest: Bucket,
    ranks: Ranks,
) -> BatchMaker:
    buckets = buckets_for(source, train, experiment.data, largest, family.frames_per_latent())
    order = _order(experiment, source, train, buckets, only_largest_bucket=experiment.data.only_largest_bucket)
    caches_latents = family.has_latents and experiment.levers.cache_latents
    caches_text = bool(family.text_parts) and experiment.levers.cache_text
    return BatchMaker(
        source=source,
        order=order,
        buckets=buckets,
        choice=experiment.data,
        seed=experiment.train.seed,
        batch_size=experiment.train.batch_size,
        gradient_accumulation=experiment.train.gradient_accumulation,
        rank=ranks.rank,
        world_size=ranks.size,
        latent_shape=family.latent_shape,
        latents=encoder_plan.latent_lookup() if caches_latents else None,
        text=encoder_plan.text_lookup() if caches_text else None,
        has_autoencoder=family.has_latents,
    )


def _order(
    experiment: Experiment,
    source: Source,
    train: Sequence[int],
    buckets: Sequence[Bucket],
    *,
    only_largest_bucket: bool,
) -> StepOrder:
    return order_for(
        source,
        train,
        buckets,
        only_largest_bucket=only_largest_bucket,
        samples_per_step=experiment.samples_per_step(),
        seed=experiment.train.seed,
    )


def _needed(order: StepOrder, num_steps: int | None, train: Sequence[int], *, has_all_buckets: bool) -> Sequence[int]:
    """The samples that the run will see: one that is shorter than an epoch, or has one bucket, encodes only those."""
    num_steps = order.num_steps_per_epoch if num_steps is None else num_steps
    if has_all_buckets and num_steps >= order.num_steps_per_epoch:
        return train
    return order.samples_until(num_steps)


def _effective_model(
    family: Family, folder: Path | None, device: torch.device, assembled: Assembled, step: TrainingStep
) -> dict[str, Any]:
    method = assembled.method
    num_trained, num_all = num_trained_and_all(method)
    facts: dict[str, Any] = {
        "family": family.name,
        "model_folder": None if folder is None else str(folder.resolve()),
        "device": str(device),
        "num_threads": torch.get_num_threads(),
        "objective": {"kind": type(step.objective).__name__, **vars(step.objective)},
        "num_trained_params": num_trained,
        "num_params": num_all,
        **assembled.levers.effective,
    }
    if isinstance(method, AppliedAdapter):
        facts["adapter"] = method.facts()
    if assembled.quantized is not None:
        facts["quantized"] = assembled.quantized.facts()
    return facts


def _effective_data(
    experiment: Experiment,
    source: Source,
    maker: BatchMaker,
    train: Sequence[int],
    held_out: Sequence[int],
    num_steps: int | None,
) -> dict[str, Any]:
    whole: dict[str, int] = {}
    if experiment.data.only_largest_bucket:
        order = _order(experiment, source, train, maker.buckets, only_largest_bucket=False)
        whole = {"num_steps_per_epoch_of_all_buckets": order.num_steps_per_epoch}
    return {
        "num_steps": num_steps,
        "num_steps_per_epoch": maker.order.num_steps_per_epoch,
        **whole,
        "samples_per_step": experiment.samples_per_step(),
        "num_train_samples": len(train),
        "num_held_out_samples": len(held_out),
        "buckets_px": [[b.width_px, b.height_px, *([b.num_frames] if b.num_frames else [])] for b in maker.buckets],
        "data_fingerprint": source.fingerprint(),
    }


def _batched(conditioning: Conditioning) -> Conditioning:
    return {name: tensor[None] for name, tensor in conditioning.items()}
