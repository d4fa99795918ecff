"""How fast a model denoises, and how fast it makes images, in this process."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foretune.accelerator.memory import peak_allocated_bytes, peak_reserved_bytes
from foretune.accelerator.timing import wait_for
from foretune.choices.inference import form_of
from foretune.choices.training import ObjectiveChoice
from foretune.core.memory_limit import limit_memory
from foretune.core.observer import Observer
from foretune.data.buckets import Bucket
from foretune.measure.bench_request import InferenceRequest
from foretune.measure.synthetic import SyntheticBatches
from foretune.models.family import Family
from foretune.models.trainable import TrainableFamily
from foretune.record.environment import environment_fingerprint
from foretune.step.levers.compiling import apply_compile
from foretune.step.precision import PrecisionPolicy
from foretune.training.compiled_sampling import refuse_uncompilable
from foretune.training.compiling_notice import compiling_notice
from foretune.training.devices import choose_device, fail_when_full, peak_host_bytes, use_threads
from foretune.training.ranks import ALONE, Ranks
from foretune.training.sampled_model import SampledModel, require_adapter_to_merge
from foretune.training.sampling import pipeline_size, plain_frame, sampled
from foretune.training.sampling_setup import SamplingChoice, SamplingSetup, sampling_setup
from foretune.training.sizes import sampling_size

_PROMPT = "a small red circle on blue"


def measure_inference(request: InferenceRequest, observer: Observer, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Raw times of denoising steps, or of batches of images, with the memory they took.

    Of several processes each measures the same work on its own device; the first one answers for all.
    """
    use_threads(request.threads)
    device = choose_device(request.device, ranks.local_rank)
    if device.type == "cpu" and request.memory_limit_bytes is not None:
        # Elsewhere the batch is in the device's memory, and a driver maps more host memory than it uses.
        limit_memory(request.memory_limit_bytes // ranks.size)
    fail_when_full(device)
    choice = SamplingChoice(**form_of(request), device=device.type)
    setup = sampling_setup(choice, local_rank=ranks.local_rank)
    model = SampledModel.find(request.model, None if request.adapter is None else Path(request.adapter))
    if request.merge:
        require_adapter_to_merge([model])
    family = model.family
    size = sampling_size(family, request.size_px, request.num_frames)
    pipeline = _pipeline(request, model, setup)
    denoiser: nn.Module = getattr(pipeline, family.denoiser_part).to(device).eval()
    if request.compile == "regional":
        refuse_uncompilable(denoiser)
        apply_compile(family.blocks(denoiser))
    made: list[Tensor] = []
    compiling = nullcontext() if request.compile == "off" else compiling_notice(observer, "compiling")
    with torch.no_grad(), setup.policy.products():
        if request.num_images:
            # Layers quantised from a full-precision model compute in the dtype around them; a plain pipeline is called
            # as any program would.
            with nullcontext() if request.quantize == "none" else setup.policy.autocast(device.type):
                act = _imaging(request, family, pipeline.to(device), size, made, ranks)
                progress = partial(observer.preparing, "images")
                times_s = _timed(act, request.num_images, device, progress, compiling, ranks)
        else:
            act = _denoising(request, family, denoiser, setup.policy, size)
            progress = partial(observer.preparing, "denoising")
            times_s = _timed(act, request.num_steps, device, progress, compiling, ranks)
    if request.images_file is not None:
        _save_images(request, made, ranks)
    by_device = ranks.from_all(times_s)
    return {
        "times_s": times_of_all(by_device),
        **({"times_s_by_device": by_device} if ranks.size > 1 else {}),
        "size_px": size.resolution,
        "num_frames": size.num_frames,
        "device": str(device) if ranks.size == 1 else device.type,
        "peak_device_bytes": _most(ranks, peak_allocated_bytes(device)),
        "peak_reserved_bytes": _most(ranks, peak_reserved_bytes(device)),
        "peak_host_bytes": _most(ranks, peak_host_bytes()),
        "environment": environment_fingerprint(),
    }


def times_of_all(by_device: Sequence[Sequence[float]]) -> list[float]:
    """The time of each step that all devices make at once: from the end of the step before on the device that is last.

    They begin together and do not wait for each other, so the sum is the time of the slowest device.
    """
    ends = [max(place) for place in zip(*(accumulate(times_s) for times_s in by_device), strict=True)]
    return [end - before for before, end in pairwise([0.0, *ends])]


def _most(ranks: Ranks, num_bytes: int | None) -> int | None:
    known = [one for one in ranks.from_all(num_bytes) if one is not None]
    return max(known, default=None)


def _pipeline(request: InferenceRequest, model: SampledModel, setup: SamplingSetup) -> Any:
    """The whole pipeline for images; for denoising steps its denoiser alone, because nothing else takes part."""
    family = model.family
    parts: dict[str, Any] = {} if request.num_images else dict.fromkeys(_beside_denoiser(family))
    denoiser = model.load_denoiser(setup)
    pipeline = family.load_pipeline(model.folder, setup.dtype, **parts, **{family.denoiser_part: denoiser})
    model.attach_adapter(setup, pipeline)
    return pipeline


def _beside_denoiser(family: TrainableFamily) -> tuple[str, ...]:
    return (*family.text_parts, *family.image_parts, *(("vae",) if family.has_latents else ()))


def _denoising(
    request: InferenceRequest, family: Family, denoiser: nn.Module, policy: PrecisionPolicy, size: Bucket
) -> Callable[[int], object]:
    """One forward pass of the denoiser for the whole batch, as every denoising step makes one."""
    device = next(denoiser.parameters()).device
    made = SyntheticBatches(
        family=family,
        batch_size=request.batch_size,
        gradient_accumulation=1,
        size=size,
        num_text_tokens=family.own_text_tokens(),
        seed=0,
    )[0].to(device)
    objective = family.objective(ObjectiveChoice())
    level = objective.time(objective.noise_level(made.uniform))
    dtype = policy.compute_dtype
    noisy = made.noise.to(dtype)
    conditioning = {name: t.to(dtype) if t.is_floating_point() else t for name, t in (made.conditioning or {}).items()}

    def act(number: int) -> object:  # noqa: ARG001 - every step is alike
        with policy.autocast(device.type):
            return family.predict(denoiser, noisy, level, conditioning, guidance_scale=ObjectiveChoice().guidance_scale)

    return act


def _imaging(
    request: InferenceRequest,
    family: TrainableFamily,
    pipeline: Any,
    size: Bucket,
    made: list[Tensor],
    ranks: Ranks,
) -> Callable[[int], object]:
    """From captions to pixels, as a user calls the pipeline, with its own guidance. Images go into `made`."""
    arguments: dict[str, Any] = {
        "num_inference_steps": request.num_steps,
        "output_type": "pt",
        **family.sampling_arguments(family.own_text_tokens(), None),
    }
    if family.text_parts:
        arguments |= {"prompt": [_PROMPT] * request.batch_size, **pipeline_size(size)}
        if family.takes_first_frame:
            arguments["image"] = plain_frame(size)
    else:
        arguments["batch_size"] = request.batch_size

    def act(number: int) -> object:
        generator = torch.Generator("cpu").manual_seed(number * ranks.size + ranks.rank)
        images = sampled(pipeline(generator=generator, **arguments)).float().cpu()
        if request.images_file is not None:
            made.append(images)
        return images

    return act


def _save_images(request: InferenceRequest, made: list[Tensor], ranks: Ranks) -> None:
    """Stores the images of the first seeds: as many as one device makes, whoever made them."""
    assert request.images_file is not None, "requested"
    if not ranks.is_first:
        save_file({"images": torch.stack(made)}, f"{request.images_file}.{ranks.rank}")
    ranks.wait()
    if ranks.is_first:
        others = [Path(f"{request.images_file}.{rank}") for rank in range(1, ranks.size)]
        shares = [torch.stack(made), *(load_file(path)["images"] for path in others)]
        in_order = torch.stack(shares, dim=1).flatten(0, 1)[: request.num_images]
        save_file({"images": in_order.flatten(0, 1)}, request.images_file)
        for path in others:
            path.unlink()


def _timed(
    act: Callable[[int], object],
    num: int,
    device: torch.device,
    progress: Callable[[int, int], None],
    compiling: AbstractContextManager[None],
    ranks: Ranks,
) -> list[float]:
    """Each time ends when the device is done: a sampler cannot begin a step before the one before it has ended.

    `compiling` is entered for the first of them.
    """
    times_s = []
    wait_for(device)
    ranks.wait()
    for number in range(num):
        begin_s = time.perf_counter()
        with nullcontext() if number else compiling:
            act(number)
            wait_for(device)
        times_s.append(time.perf_counter() - begin_s)
        progress(number + 1, num)
    return times_s
