"""How fast a model denoises, and how fast it makes images, in this process."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from foretune.accelerator.memory import peak_allocated_bytes, peak_reserved_bytes
from foretune.accelerator.timing import wait_for
from foretune.choices.model import resolve_model
from foretune.choices.quantize import Quantize
from foretune.choices.training import ObjectiveChoice
from foretune.core.memory_limit import limit_memory
from foretune.data.buckets import Bucket
from foretune.measure.bench_request import InferenceRequest
from foretune.measure.synthetic import SyntheticBatches
from foretune.measure.worker_output import Teller
from foretune.models.adapters import load_adapter, merge_adapters
from foretune.models.family import Family
from foretune.models.locating import locate, open_family
from foretune.models.trainable import TrainableFamily
from foretune.record.environment import environment_fingerprint
from foretune.record.run_directory import RunDirectory
from foretune.step.levers.compiling import apply_compile
from foretune.step.precision import PrecisionPolicy
from foretune.step.quantizing import check_quantization
from foretune.step.quantizing.stand_ins import dense_stand_ins
from foretune.training.base_loading import LoadRequest, load_base
from foretune.training.compiling_notice import compiling_notice
from foretune.training.devices import choose_device, fail_when_full, peak_host_bytes, use_threads
from foretune.training.sampling import pipeline_size, plain_frame, sampled
from foretune.training.sizes import sampling_size
from foretune.training.trained_run import TrainedRun

_PROMPT = "a small red circle on blue"


def measure_inference(request: InferenceRequest, teller: Teller) -> dict[str, Any]:
    """Raw times of denoising steps, or of batches of images, with the memory they took."""
    use_threads(request.threads)
    device = choose_device(request.device)
    if device.type == "cpu":
        # Elsewhere the batch is in the device's memory, and a driver maps more host memory than it uses.
        limit_memory(request.memory_limit_bytes)
    fail_when_full(device)
    quantize = Quantize(denoiser=request.quantize)
    check_quantization(quantize, device)
    policy = PrecisionPolicy(request.precision)
    family, folder = _found(request)
    size = sampling_size(family, request.size_px, request.num_frames)
    pipeline = _pipeline(
        request, family, folder, LoadRequest(dtype=policy.compute_dtype, device=device, quantize=quantize)
    )
    denoiser: nn.Module = getattr(pipeline, family.denoiser_part).to(device).eval()
    if request.compile == "regional":
        apply_compile(family.blocks(denoiser))
    made: list[Tensor] = []
    compiling = nullcontext() if request.compile == "off" else compiling_notice(teller, "compiling")
    with torch.no_grad(), policy.products():
        if request.num_images:
            # Layers quantised from a full-precision model compute in the dtype around them; a plain pipeline is called
            # as any program would.
            with nullcontext() if request.quantize == "none" else policy.autocast(device.type):
                act = _imaging(request, family, pipeline.to(device), size, made)
                times_s = _timed(act, request.num_images, device, partial(teller.progress, "images"), compiling)
        else:
            act = _denoising(request, family, denoiser, policy, size)
            times_s = _timed(act, request.num_steps, device, partial(teller.progress, "denoising"), compiling)
    if request.images_file is not None:
        save_file({"images": torch.cat(made)}, request.images_file)
    return {
        "times_s": times_s,
        "size_px": size.resolution,
        "num_frames": size.num_frames,
        "device": str(device),
        "peak_device_bytes": peak_allocated_bytes(device),
        "peak_reserved_bytes": peak_reserved_bytes(device),
        "peak_host_bytes": peak_host_bytes(),
        "environment": environment_fingerprint(),
    }


def _found(request: InferenceRequest) -> tuple[TrainableFamily, Path]:
    path = Path(request.model)
    if (path / "experiment.yaml").is_file():
        folder = Path(RunDirectory.open(path).read_experiment()[2]["model_folder"])
    else:
        folder, _ = locate(resolve_model(request.model))
    return open_family(folder), folder


def _pipeline(request: InferenceRequest, family: TrainableFamily, folder: Path, load: LoadRequest) -> Any:
    """The whole pipeline for images; for denoising steps its denoiser alone, because nothing else takes part."""
    parts: dict[str, Any] = {}
    if not request.num_images:
        parts = dict.fromkeys(_beside_denoiser(family))
    path = Path(request.model)
    if (path / "experiment.yaml").is_file():
        trained = TrainedRun.open(RunDirectory.open(path))
        denoiser = trained.load(load.dtype, load.device, load.quantize, merge=request.merge).method.denoiser
    else:
        denoiser, _ = load_base(family, folder, load)
    pipeline = family.load_pipeline(folder, load.dtype, **parts, **{family.denoiser_part: denoiser})
    if request.adapter is not None:
        with dense_stand_ins(denoiser):
            load_adapter(family, pipeline, Path(request.adapter))
        if request.merge:
            merge_adapters(denoiser)
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
    request: InferenceRequest, family: TrainableFamily, pipeline: Any, size: Bucket, made: list[Tensor]
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
        generator = torch.Generator("cpu").manual_seed(number)
        images = sampled(pipeline(generator=generator, **arguments)).float().cpu()
        if request.images_file is not None:
            made.append(images)
        return images

    return act


def _timed(
    act: Callable[[int], object],
    num: int,
    device: torch.device,
    progress: Callable[[int, int], None],
    compiling: AbstractContextManager[None],
) -> list[float]:
    """Each time ends when the device is done: a sampler cannot begin a step before the one before it has ended.

    `compiling` is entered for the first of them.
    """
    times_s = []
    wait_for(device)
    for number in range(num):
        begin_s = time.perf_counter()
        with nullcontext() if number else compiling:
            act(number)
            wait_for(device)
        times_s.append(time.perf_counter() - begin_s)
        progress(number + 1, num)
    return times_s
