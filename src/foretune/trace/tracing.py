"""One training step on fake tensors: the real architecture, the real step, no weights."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from foretune.choices.experiment import Experiment
from foretune.data.batch import Batch
from foretune.models.family import Family
from foretune.step.building import attach_method, build_step
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.step.training_step import Phase, TrainingStep
from foretune.trace.accelerator import AcceleratorNumerics
from foretune.trace.blocks import BlockTracker
from foretune.trace.fake_model import materialise
from foretune.trace.recorder import Recorder, Recording

Numerics = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """The sizes a step's memory and work depend on."""

    batch_size: int
    height_px: int
    width_px: int
    num_text_tokens: int
    num_frames: int = 1


@dataclass(frozen=True)
class TracedStep:
    """A recording of two optimizer steps, and what its lasting storages are."""

    recording: Recording
    categories: dict[int, str]
    """Category by storage number, for storages that outlive a step or are known: weights, gradients, states."""
    num_trained_params: int
    num_params: int


def trace_step(
    experiment: Experiment, family: Family, sizes: StepSizes, numerics: Numerics, denoiser: nn.Module | None = None
) -> TracedStep:
    """Runs two optimizer steps on fake tensors: the optimizer's state appears in the first and counts in the second."""
    policy = PrecisionPolicy(experiment.train.precision)
    if denoiser is None:
        denoiser = family.denoiser_on_meta(METHODS[experiment.method.kind].load_dtype(policy))
    tracker = BlockTracker(family.blocks(denoiser))
    recorder = Recorder(tracker.current)
    on_accelerator = numerics == "cuda"
    if on_accelerator:
        policy = _AcceleratorPolicy(policy.name, recorder)
        method = attach_method(experiment, family, denoiser, lambda: (nullcontext(), policy.autocast("cuda")))
    else:
        method = attach_method(experiment, family, denoiser)
    accumulation = experiment.train.gradient_accumulation
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), recorder, recorder.watching_resizes():
            materialise(denoiser)
            step = build_step(experiment, family, method, torch.device("cpu"), foreach=on_accelerator or None)
            step.policy = policy
            step.scaler = _SteppingScaler("cpu", enabled=policy.needs_loss_scaling)
            categories = _lasting(recorder, step, denoiser)
            for number in range(2):
                recorder.phase = "inputs"
                tracker.begin_forward()
                batches = (_fake_batch(family, sizes) for _ in range(accumulation))
                step(number, 1e-4, batches, accumulation, _marker(recorder, step, categories))
                recorder.phase = "between"
            _note_states(recorder, step, categories)
    finally:
        tracker.remove()
    return TracedStep(
        recorder.recording,
        categories,
        num_trained_params=sum(p.numel() for p in step.trained.values()),
        num_params=sum(p.numel() for p in denoiser.parameters()),
    )


def _fake_batch(family: Family, sizes: StepSizes) -> Batch:
    latent = (sizes.batch_size, *family.latent_shape(sizes.height_px, sizes.width_px))
    conditioning = {
        name: torch.empty(spec.shape, dtype=spec.dtype)
        for name, spec in family.conditioning_specs(sizes.batch_size, sizes.num_text_tokens).items()
    }
    return Batch(
        step=0,
        micro=0,
        indices=tuple(range(sizes.batch_size)),
        captions=("",) * sizes.batch_size,
        images=None if family.has_latents else torch.empty(latent),
        moments=torch.empty(latent[0], latent[1] * 2, *latent[2:]) if family.has_latents else None,
        conditioning=conditioning,
        noise=torch.empty(latent),
        posterior_noise=torch.empty(latent) if family.has_latents else None,
        uniform=torch.empty(sizes.batch_size, dtype=torch.float64),
    )


def _lasting(recorder: Recorder, step: TrainingStep, denoiser: nn.Module) -> dict[int, str]:
    categories: dict[int, str] = {}
    for parameter in denoiser.parameters():
        categories[recorder.number_of(parameter)] = "trained weights" if parameter.requires_grad else "frozen weights"
    for buffer in denoiser.buffers():
        categories[recorder.number_of(buffer)] = "frozen weights"
    if step.ema is not None:
        for average in step.ema.average.values():
            categories[recorder.number_of(average)] = "moving average"
    return categories


def _note_states(recorder: Recorder, step: TrainingStep, categories: dict[int, str]) -> None:
    for state in step.optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                categories[recorder.number_of(value)] = "optimizer state"


def _marker(recorder: Recorder, step: TrainingStep, categories: dict[int, str]) -> Any:
    @contextmanager
    def mark(phase: Phase) -> Iterator[None]:
        recorder.phase = phase
        yield
        if phase == "backward":
            for parameter in step.trained.values():
                if parameter.grad is not None:
                    categories[recorder.number_of(parameter.grad)] = "gradients"

    return mark


@dataclass(frozen=True)
class _AcceleratorPolicy(PrecisionPolicy):
    """The same precision, with what a CUDA device would do in the place of the CPU's autocast."""

    recorder: Recorder

    def autocast(self, device_type: str) -> AbstractContextManager[object]:
        low = None if self.compute_dtype == torch.float32 else self.compute_dtype
        return AcceleratorNumerics(self.recorder, low)


class _SteppingScaler(torch.amp.GradScaler):
    """Scales as usual but always steps: whether gradients were finite is not known of fake ones."""

    def _maybe_opt_step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        optimizer.step(*args[1:], **kwargs)
        return None
