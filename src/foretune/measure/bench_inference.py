"""Inference speed: denoising steps a second at a batch and precision, and images a second end to end."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from foretune.choices.inference import MeasuredForm, form_of
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.hub.adapters import LocatedAdapter
from foretune.measure.bench import BENCH_FILE, new_directory
from foretune.measure.bench_request import InferenceRequest
from foretune.measure.fresh_process import MeasurementFailed, ask_fresh_process, memory_limit_bytes
from foretune.record.atomic import write_text
from foretune.stats.break_even import start_s
from foretune.stats.intervals import Estimate, typical

_FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class InferenceChoices(MeasuredForm):
    """How to sample and how to measure it."""

    preset: str | None = None
    """The name under which batch and precision were asked for."""
    size_px: int | str | None = None
    """One side, or `416x240`; None: the model's own."""
    num_frames: int | None = None
    """Of clips; None: the model's own."""
    num_steps: int = 20
    num_repeats: int = 3
    num_images: int = 3
    """Batches of images that are timed in each repeat; 0 leaves out images."""
    image_batch_size: int = 1
    num_inference_steps: int = 28
    """Denoising steps of an image."""
    device: str = "auto"
    threads: int | None = None
    """Of a CPU; None leaves it to torch."""
    memory_limit_bytes: int | None = None
    """Of a process that computes on the CPU. None: most of what the system can give."""


@dataclass(frozen=True, kw_only=True)
class InferenceBench:
    """What was measured. None is "not measured", never zero."""

    path: Path
    model: str
    adapter: str | None = None
    """The adapter on it, where one was given: its name, with the commit of one from the Hub."""
    choices: InferenceChoices
    batch_size: int
    """What was measured with on each device: the one asked for, or the largest that fits, found by halving."""
    did_not_fit: tuple[int, ...]
    """Batches that ran out of memory before."""
    size_px: int | str
    device: str
    pass_s: Estimate
    """Seconds of one denoising step of the whole batch, on each device at once: the typical one."""
    mean_pass_s: Estimate
    """All time over all denoising steps: what rates are made of."""
    image_batch_s: Estimate | None
    """Seconds from captions to pixels for one batch of images, as a mean."""
    peak_device_bytes: int | None
    peak_reserved_bytes: int | None
    peak_host_bytes: int | None
    """Of denoising; of several devices the one that takes most."""
    denoising: tuple[dict[str, Any], ...]
    """Raw answers of the repeats."""
    imaging: tuple[dict[str, Any], ...]
    num_frames: int | None = None
    """Of clips; None for images."""

    @property
    def start_s(self) -> float:
        """What the first denoising steps took beyond as many steady ones, as a mean of the repeats."""
        return statistics.fmean(start_s(one["times_s"]) for one in self.denoising)

    @property
    def is_reduced(self) -> bool:
        return bool(self.did_not_fit)

    def to_mapping(self) -> dict[str, Any]:
        """The content of bench.json."""
        return {"format": "InferenceBench", "format_version": _FORMAT_VERSION, **asdict(self), "path": str(self.path)}


def bench_inference(
    model: str, adapter: LocatedAdapter | None, choices: InferenceChoices, benches: Path, observer: Observer
) -> InferenceBench:
    """Measures in fresh processes, and writes benches/<model>/<id>/bench.json with every raw time."""
    path = new_directory(benches, Path(model).resolve().name if Path(model).exists() else model.replace("/", "-"))
    limit_bytes = choices.memory_limit_bytes or memory_limit_bytes()
    asked = InferenceRequest(
        model=model,
        adapter=None if adapter is None else str(adapter.path),
        **form_of(choices),
        size_px=choices.size_px,
        num_frames=choices.num_frames,
        num_steps=choices.num_steps,
        device=choices.device,
        threads=choices.threads,
        memory_limit_bytes=limit_bytes,
    )
    request, first, did_not_fit = _largest_that_fits(asked, observer)
    denoising = [first]
    for number in range(1, choices.num_repeats):
        observer.preparing("denoising, repeats", number, choices.num_repeats)
        denoising.append(ask_fresh_process(request, observer))
    images = replace(
        asked,
        batch_size=choices.image_batch_size,
        num_steps=choices.num_inference_steps,
        num_images=choices.num_images,
    )
    imaging = []
    for number in range(choices.num_repeats if choices.num_images else 0):
        observer.preparing("images, repeats", number, choices.num_repeats)
        imaging.append(ask_fresh_process(images, observer))
    result = InferenceBench(
        path=path,
        model=model,
        adapter=None if adapter is None else adapter.label,
        choices=choices,
        batch_size=request.batch_size,
        did_not_fit=did_not_fit,
        size_px=first["size_px"],
        num_frames=first["num_frames"],
        device=first["device"],
        pass_s=typical([one["times_s"] for one in denoising]),
        mean_pass_s=typical([one["times_s"] for one in denoising], statistic="mean"),
        image_batch_s=typical([one["times_s"] for one in imaging], statistic="mean") if imaging else None,
        **{key: _most(denoising, key) for key in ("peak_device_bytes", "peak_reserved_bytes", "peak_host_bytes")},
        denoising=tuple(denoising),
        imaging=tuple(imaging),
    )
    write_text(path / BENCH_FILE, json.dumps(result.to_mapping(), indent=2) + "\n")
    return result


def _largest_that_fits(
    request: InferenceRequest, observer: Observer
) -> tuple[InferenceRequest, dict[str, Any], tuple[int, ...]]:
    """The request with the first batch that fits, what it measured, and the batches that did not."""
    did_not_fit: list[int] = []
    while True:
        try:
            return request, ask_fresh_process(request, observer), tuple(did_not_fit)
        except MeasurementFailed as failure:
            if failure.status != "out of memory":
                raise
            if request.batch_size == 1:
                raise UserError(
                    "Not even a batch of 1 fits into memory. Try a smaller size or bf16: "
                    "foretune bench MODEL --inference --size 256 --precision bf16"
                ) from failure
        did_not_fit.append(request.batch_size)
        observer.message(f"A batch of {request.batch_size} does not fit into memory; trying half of it.")
        request = replace(request, batch_size=request.batch_size // 2)


def _most(answers: Sequence[dict[str, Any]], key: str) -> int | None:
    found = [answer[key] for answer in answers if answer[key] is not None]
    return max(found) if found else None
