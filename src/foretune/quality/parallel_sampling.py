"""Images of one model on several devices: each process holds the model and makes every N-th batch.

The batches are those of one device, and each image has its own noise, so the images are the same. A CPU that adds with
another number of threads rounds differently: its images differ by less than can be seen.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from foretune.choices.quantize import Quantize
from foretune.choices.running import Parallel
from foretune.core.observer import Observer
from foretune.data.buckets import Bucket
from foretune.models.family import Conditioning
from foretune.quality.batched import Job, SampledBatches, batches_of, sample_batch, sample_batches
from foretune.training.compiled_sampling import compiled_blocks
from foretune.training.devices import choose_device, use_threads
from foretune.training.launching import launch_parts
from foretune.training.rank_process import run_rank
from foretune.training.ranks import found_ranks
from foretune.training.sampled_model import SampledModel
from foretune.training.sampling import Pixels, SampleRequest
from foretune.training.sampling_setup import SamplingSetup

_WORKER = "foretune.quality.parallel_sampling"
Texts = Mapping[str, Conditioning]
"""Encoded prompts without a batch dimension, and the empty one; empty for models without text."""


@dataclass(frozen=True, kw_only=True)
class SamplingTask:
    """The images to make of one model."""

    model: SampledModel
    request: SampleRequest
    num_seeds: int = 1
    batch_size: int = 1
    measures_speed: bool = False
    """A single batch is preceded by a short one that warms up."""

    @property
    def batches(self) -> list[list[Job]]:
        return batches_of(self.request, self.num_seeds, self.batch_size)

    def num_processes(self, devices: int) -> int:
        """No more than there are batches."""
        return min(devices, len(self.batches))


def sample_task(
    task: SamplingTask, setup: SamplingSetup, texts: Texts, devices: int, observer: Observer, what: str
) -> SampledBatches:
    """Samples on this device, or on several of this machine. `what` is shown with the progress."""
    num_processes = task.num_processes(devices)
    if num_processes > 1:
        return _on_several(task, setup, texts, num_processes, observer, what)
    denoiser = task.model.load_denoiser(setup)
    pipeline = setup.pipeline(task.model.family, task.model.folder, denoiser)
    task.model.attach_adapter(setup, pipeline)
    return sample_loaded(task, setup, pipeline, texts, task.batches, observer, what)


def sample_loaded(
    task: SamplingTask,
    setup: SamplingSetup,
    pipeline: Any,
    texts: Texts,
    batches: Sequence[Sequence[Job]],
    observer: Observer,
    what: str,
) -> SampledBatches:
    """Samples with a pipeline that is on the device."""
    family, request = task.model.family, task.request

    def try_out(num_steps: int) -> None:
        sample_batch(family, pipeline, replace(request, num_inference_steps=num_steps), batches[0], texts)

    def progress(done: int, total: int) -> None:
        observer.preparing(what, done, total)

    denoiser = getattr(pipeline, family.denoiser_part)
    with (
        setup.sampling(),
        compiled_blocks(
            setup, family, denoiser, try_out, sum(map(len, batches)), lambda text: observer.message(f"{what}: {text}")
        ),
    ):
        return sample_batches(family, pipeline, request, batches, texts, progress, warms_up=task.measures_speed)


def _on_several(
    task: SamplingTask, setup: SamplingSetup, texts: Texts, num_processes: int, observer: Observer, what: str
) -> SampledBatches:
    with tempfile.TemporaryDirectory(prefix="foretune-sampling-") as scratch:
        folder = Path(scratch)
        save_file(
            {
                f"{number}/{name}": tensor.contiguous().cpu()
                for number, text in enumerate(texts)
                for name, tensor in texts[text].items()
            },
            folder / "texts.safetensors",
        )
        request = {
            "folder": scratch,
            "what": what,
            "texts": list(texts),
            "task": asdict(task),
            "setup": {**asdict(setup), "device": setup.device.type, "quantize": setup.quantize.model_dump()},
        }
        parallel = Parallel.model_validate({"devices": num_processes, "device": setup.device.type})
        launch_parts("Sampling", parallel, _WORKER, json.loads(json.dumps(request, default=str)), observer)
        batches: list[list[Pixels]] = [[] for _ in task.batches]
        images_per_s = 0.0
        for rank in range(num_processes):
            stored = load_file(_share_file(folder, rank))
            images_per_s += float(stored.pop("images_per_s"))
            own = iter([stored[str(number)].numpy() for number in range(len(stored))])
            for place in range(rank, len(batches), num_processes):
                batches[place] = [next(own) for _ in task.batches[place]]
    return SampledBatches([image for batch in batches for image in batch], images_per_s)


def _share_file(folder: Path, rank: int) -> Path:
    return folder / f"images-{rank}.safetensors"


def _sample_share(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    """Makes the share of one process."""
    ranks = found_ranks()
    assert ranks is not None, "started by the elastic agent"
    use_threads(None)
    folder, choices = Path(request["folder"]), request["setup"]
    quantize = Quantize.model_validate(choices.pop("quantize"))
    device = choose_device(choices.pop("device"), ranks.local_rank)
    setup = SamplingSetup(**choices, device=device, quantize=quantize)
    task = _task_from(request["task"])
    tensors = load_file(folder / "texts.safetensors", device=str(device))
    texts: dict[str, Conditioning] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition("/")
        texts[request["texts"][int(number)]] = {**texts.get(request["texts"][int(number)], {}), name: tensor}
    denoiser = task.model.load_denoiser(setup)
    pipeline = setup.pipeline(task.model.family, task.model.folder, denoiser)
    task.model.attach_adapter(setup, pipeline)
    own = task.batches[ranks.rank :: ranks.size]
    what = f"{request['what']}, first of {ranks.size} devices"
    found = sample_loaded(task, setup, pipeline, texts, own, observer, what)
    images = {str(number): torch.from_numpy(image.copy()) for number, image in enumerate(found.images)}
    save_file({**images, "images_per_s": torch.tensor(found.images_per_s)}, _share_file(folder, ranks.rank))
    return {}


def _task_from(mapping: dict[str, Any]) -> SamplingTask:
    model: dict[str, Any] = {key: None if path is None else Path(path) for key, path in mapping.pop("model").items()}
    request = mapping.pop("request")
    size = Bucket(**request.pop("size"))
    prompts, first_frames = tuple(request.pop("prompts")), tuple(request.pop("first_frames"))
    assert not first_frames, "frames are not sent to other processes"
    sampling = SampleRequest(**request, size=size, prompts=prompts)
    return SamplingTask(model=SampledModel(**model), request=sampling, **mapping)


if __name__ == "__main__":
    run_rank(_sample_share)
