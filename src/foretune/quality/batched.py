"""Samples many images in few pipeline calls. Each has its own generator, so that it equals the image sampled alone."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from foretune.core.draws import derive_seed
from foretune.data.buckets import Bucket
from foretune.models.family import Conditioning
from foretune.models.trainable import TrainableFamily
from foretune.training.sampling import Pixels, SampleRequest, decoding, pipeline_size, sampled

# A denoiser's memory grows with the pixels of a batch: on a CPU, 64 images of 32 px; of 1024 px, one.
_MOST_PIXELS = 1 << 17
_MOST_IMAGES = 64
_WARM_UP_STEPS = 2  # the schedule of Mochi cannot be made for a single step


Job = tuple[int, int]
"""The number of a prompt, and of one of its seeds."""


@dataclass(frozen=True)
class Sampled:
    """Images by prompt and seed, and the sampling speed."""

    images: tuple[tuple[Pixels, ...], ...]
    images_per_s: float
    """Without the first call, which is warm-up, if there were several. If there is only one, a shorter warm-up call
    precedes it.
    """


@dataclass(frozen=True)
class SampledBatches:
    """Images of some batches, in their order."""

    images: list[Pixels]
    images_per_s: float


def batches_of(request: SampleRequest, num_seeds: int, at_once: int) -> list[list[Job]]:
    """All images, prompt by prompt, in batches: the same, however many devices make them."""
    jobs = [(index, seed) for index in range(len(request.prompts)) for seed in range(num_seeds)]
    return [jobs[start : start + at_once] for start in range(0, len(jobs), at_once)]


def sample_grid(
    family: TrainableFamily,
    pipeline: Any,
    request: SampleRequest,
    num_seeds: int,
    encoded: Mapping[str, Conditioning],
    progress: Callable[[int, int], None],
    *,
    batch_size: int | None = None,
) -> Sampled:
    """Samples `num_seeds` images of each prompt, from `request.seed` on: the n-th of a prompt is what `sample` returns
    for the n-th seed.

    `encoded` has the captions' tensors without a batch dimension, including the empty caption.
    """
    batches = batches_of(request, num_seeds, batch_size or images_at_once(request.size))
    found = sample_batches(family, pipeline, request, batches, encoded, progress)
    return Sampled(by_prompt(found.images, num_seeds), found.images_per_s)


def by_prompt(images: Sequence[Pixels], num_seeds: int) -> tuple[tuple[Pixels, ...], ...]:
    """Images in the order of `batches_of`, grouped."""
    return tuple(tuple(images[start : start + num_seeds]) for start in range(0, len(images), num_seeds))


def sample_batches(
    family: TrainableFamily,
    pipeline: Any,
    request: SampleRequest,
    batches: Sequence[Sequence[Job]],
    encoded: Mapping[str, Conditioning],
    progress: Callable[[int, int], None],
    *,
    warms_up: bool = True,
) -> SampledBatches:
    """Samples each batch in one call. A single batch is preceded by a short one, unless its speed is of no interest."""
    total = sum(map(len, batches))
    images: list[Pixels] = []
    times_s: list[tuple[int, float]] = []
    if len(batches) == 1 and warms_up:
        # Without it, the first model of a process would seem slower, by a factor of two on a CPU.
        sample_batch(family, pipeline, replace(request, num_inference_steps=_WARM_UP_STEPS), batches[0], encoded)
    for batch in batches:
        began_s = time.perf_counter()
        images += sample_batch(family, pipeline, request, batch, encoded)
        times_s.append((len(batch), time.perf_counter() - began_s))
        progress(len(images), total)
    counted = times_s[1:] or times_s
    return SampledBatches(images, sum(num for num, _ in counted) / sum(seconds for _, seconds in counted))


def images_at_once(size: Bucket) -> int:
    """Returns the number of images of this size sampled in one call."""
    return max(1, min(_MOST_IMAGES, _MOST_PIXELS // size.num_pixels))


def sample_batch(
    family: TrainableFamily,
    pipeline: Any,
    request: SampleRequest,
    jobs: Sequence[Job],
    encoded: Mapping[str, Conditioning],
) -> list[Pixels]:
    """Samples these images in one call of the pipeline."""
    generators = [
        torch.Generator("cpu").manual_seed(derive_seed(request.seed + seed, "sample", index)) for index, seed in jobs
    ]
    arguments: dict[str, Any] = {
        "num_inference_steps": request.num_inference_steps,
        "generator": generators,
        "output_type": "pt",
        **family.sampling_arguments(request.num_text_tokens, request.guidance_scale),
    }
    if family.text_parts:
        captions = stacked([encoded[request.prompts[index]] for index, _ in jobs])
        unconditional = stacked([encoded[""]] * len(jobs))
        arguments |= pipeline_size(request.size)
        if family.takes_first_frame:
            (index,) = (index for index, _ in jobs)  # pipelines take one frame to continue
            arguments["image"] = request.first_frame(index)
        arguments |= family.pipeline_text(captions, unconditional)
        family.give_first_frame(pipeline, captions)
    else:
        arguments["batch_size"] = len(jobs)
    with torch.no_grad(), decoding(pipeline, "one of the samples"):
        images = sampled(pipeline(**arguments))
    return list(images.float().clamp(0, 1).movedim(-3, -1).cpu().numpy())


def stacked(entries: Sequence[Conditioning]) -> Conditioning:
    """Stacks captions' tensors into one batch."""
    return {name: torch.stack([entry[name] for entry in entries]) for name in entries[0]}
