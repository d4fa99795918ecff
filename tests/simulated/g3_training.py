"""Trains a case on the simulated device and reads its allocator's statistics."""

import gc
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

import torch

from foretune.choices.experiment import Experiment
from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.data.loading import loader
from foretune.training.preparing import Prepared, prepare
from foretune.training.train import weight_sums

_MOST_LEFT_BYTES = 64 * 2**10
"""Tables that bitsandbytes keeps for all optimizers of a process."""


@dataclass(frozen=True)
class Measured:
    """What the allocator counted from the loading of the model, over the sums of its weights, to the end of the last
    step.
    """

    peak_bytes: int
    reserved_bytes: int
    has_finished: bool
    """False where it ran out of memory."""
    num_retries: int
    """How often the allocator emptied its cache to make room."""
    workspaces_bytes: int
    """The part of the peak that cuBLAS has."""
    parameter_bytes: int
    """Weights, and the gradients and two averages of those that are trained; 0 where it ran out of memory."""


def trained(mapping: dict[str, Any], sim: Any, limit_bytes: int | None = None) -> Measured:
    """Loads the model and trains it; the allocator may take at most `limit_bytes`.

    Captions and latents are in the caches already.
    """
    experiment, folder = understand(mapping, source=None).experiment, Path(mapping["model"])
    total_bytes = sim.total_memory()
    _free()
    _free_workspaces()
    left_bytes = torch.cuda.memory_allocated()
    assert left_bytes < _MOST_LEFT_BYTES, "what another training left is not this one's"
    torch.cuda.reset_peak_memory_stats()
    before = _stats()
    if limit_bytes is not None:
        sim.set_limit(limit_bytes)
    parameter_bytes = 0
    try:
        parameter_bytes = _train(experiment, folder)
        has_finished = True
    except torch.OutOfMemoryError:
        has_finished = False
    finally:
        sim.set_limit(total_bytes)
    after = _stats()
    _free()
    return Measured(
        peak_bytes=after["allocated_bytes.all.peak"] - left_bytes,
        reserved_bytes=after["reserved_bytes.all.peak"],
        has_finished=has_finished,
        num_retries=after["num_alloc_retries"] - before["num_alloc_retries"],
        workspaces_bytes=_free_workspaces(),
        parameter_bytes=parameter_bytes,
    )


def fill_caches(mapping: dict[str, Any]) -> None:
    """Encodes what the caches do not hold: latents and captions differ by precision."""
    prepare(understand(mapping, source=None).experiment, Path(mapping["model"]), Observer())
    _free()


def _train(experiment: Experiment, folder: Path) -> int:
    prepared = prepare(experiment, folder, Observer())
    weight_sums(prepared)
    accumulation = experiment.train.gradient_accumulation
    num_steps = experiment.train.steps
    assert num_steps is not None
    batches = iter(loader(prepared.batch_maker, 0, num_steps * accumulation, device=prepared.device))
    for number in range(num_steps):
        prepared.step(number, 1e-4, (_on_device(prepared, next(batches)) for _ in range(accumulation)), accumulation)
    torch.cuda.synchronize()
    weights = prepared.method.denoiser.parameters()
    return sum(weight.nbytes * (4 if weight.requires_grad else 1) for weight in weights)


def _on_device(prepared: Prepared, batch: Any) -> Any:
    return prepared.encoders.ready(batch, prepared.device)


def _free() -> None:
    # diffusers keeps tables of positions, and the module that made them, for the life of a process.
    for known in gc.get_objects():
        if isinstance(known, _lru_cache_wrapper) and known.__module__.startswith("diffusers."):
            known.cache_clear()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _free_workspaces() -> int:
    """cuBLAS keeps them for the life of a process."""
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return before - torch.cuda.memory_allocated()


def _stats() -> dict[str, Any]:
    return dict(torch.cuda.memory_stats())
