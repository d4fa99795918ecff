"""One training step on fake tensors: the real architecture, the real step, no weights."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from foretune.choices.experiment import Experiment
from foretune.data.batch import Batch
from foretune.models.family import GUIDE, Family
from foretune.step.building import attach_method, build_step
from foretune.step.methods import METHODS
from foretune.step.precision import PrecisionPolicy
from foretune.step.training_step import Phase, TrainingStep
from foretune.trace.accelerator import AcceleratorNumerics
from foretune.trace.answers import AssumedData
from foretune.trace.blocks import BlockTracker
from foretune.trace.cpu_workspace import CpuWorkspaces
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
    """A recording of one optimizer step in steady state, and what its storages are."""

    recording: Recording
    categories: dict[int, str]
    """Category by storage number, where it is known: weights, gradients, optimizer state, moving average."""
    owners: dict[int, int]
    """Block by storage number, for what belongs to the weights of a block."""
    trained_owners: tuple[int | None, ...]
    """Block of each trained tensor, in the optimizer's order."""
    block_kinds: tuple[int, ...]
    """Which kind of block each block is: equal numbers are equal blocks."""
    num_trained_params: int
    num_params: int
    num_cpu_kernels: Mapping[str, int] = field(default_factory=dict)
    """Kernels for low types that oneDNN makes for this step and keeps, outside of every tensor: matmul, conv."""


def trace_step(
    experiment: Experiment, family: Family, sizes: StepSizes, numerics: Numerics, denoiser: nn.Module | None = None
) -> TracedStep:
    """Runs one optimizer step on fake tensors, after the optimizer has made its state: all later steps are like it."""
    policy = PrecisionPolicy.of(experiment.train)
    if denoiser is None:
        denoiser = family.denoiser_on_meta(METHODS[experiment.method.kind].load_dtype(policy))
    tracker = BlockTracker(family.blocks(denoiser))
    workspaces = CpuWorkspaces(torch.get_num_threads()) if numerics == "cpu" else None
    recorder = Recorder(tracker.current, workspaces)
    assumed = AssumedData()
    on_accelerator = numerics == "cuda"
    if on_accelerator:
        policy = _AcceleratorPolicy(policy.name, policy.weights, recorder=recorder)
    method = attach_method(
        experiment,
        family,
        denoiser,
        lambda: (nullcontext(), _both(assumed, policy.autocast("cuda") if on_accelerator else nullcontext())),
    )
    accumulation = experiment.train.gradient_accumulation
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), recorder, recorder.watching_resizes(), assumed:
            materialise(denoiser)
            step = build_step(experiment, family, method, torch.device("cpu"), foreach=on_accelerator or None)
            step.policy = policy
            step.scaler = _SteppingScaler("cpu", enabled=policy.needs_loss_scaling)
            categories = _lasting(recorder, step, denoiser)
            _make_optimizer_state(step)
            _note_states(recorder, step, categories)
            recorder.phase = "inputs"
            tracker.begin_forward()
            batches = (_fake_batch(family, sizes, recorder) for _ in range(accumulation))
            owned = _owned(family, denoiser)
            gradient_owners: dict[int, int] = {}
            beside = {id(p): i for i, module in enumerate(family.beside_blocks(denoiser)) for p in module.parameters()}
            marker = _marker(recorder, step, categories, beside, gradient_owners)
            step(1, 1e-4, batches, accumulation, marker)
            recorder.phase = "between"
            owners = {**_owners(recorder, step, owned), **gradient_owners}
            recording = recorder.finish()
    finally:
        tracker.remove()
    return TracedStep(
        recording,
        categories,
        owners=owners,
        trained_owners=tuple(owners.get(recorder.number_of(p)) for p in step.trained.values()),
        block_kinds=kinds_of_blocks(family.blocks(denoiser)),
        num_trained_params=sum(p.numel() for p in step.trained.values()),
        num_params=sum(p.numel() for p in denoiser.parameters()),
        num_cpu_kernels={} if workspaces is None else workspaces.num_kernels,
    )


@contextmanager
def _both(outer: AbstractContextManager[object], inner: AbstractContextManager[object]) -> Iterator[None]:
    with outer, inner:
        yield


def _fake_batch(family: Family, sizes: StepSizes, recorder: Recorder) -> Batch:
    recorder.phase = "inputs"
    latent = (sizes.batch_size, *family.latent_shape(sizes.height_px, sizes.width_px, sizes.num_frames))
    conditioning = {
        name: torch.empty(spec.shape, dtype=spec.dtype)
        for name, spec in family.conditioning_specs(sizes.batch_size, sizes.num_text_tokens).items()
    }
    if family.num_guide_channels():
        conditioning[GUIDE] = torch.empty(latent[0], family.num_guide_channels(), *latent[2:])
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


def _make_optimizer_state(step: TrainingStep) -> None:
    """The first step of an optimizer makes its state: a step with gradients of zero does the same, without a model."""
    for parameter in step.trained.values():
        parameter.grad = torch.zeros_like(parameter)
    step.optimizer.step()
    step.optimizer.zero_grad(set_to_none=True)


def _owned(family: Family, denoiser: nn.Module) -> list[list[Tensor]]:
    """The weights and buffers that there are once for each block."""
    beside = family.beside_blocks(denoiser)
    modules = [(block, *beside[index : index + 1]) for index, block in enumerate(family.blocks(denoiser))]
    return [[t for module in group for t in (*module.parameters(), *module.buffers())] for group in modules]


def _owners(recorder: Recorder, step: TrainingStep, owned: list[list[Tensor]]) -> dict[int, int]:
    """The block of every weight, and of the optimizer's state and average of it."""
    owners: dict[int, int] = {}
    names = {id(parameter): name for name, parameter in step.trained.items()}
    for index, tensors in enumerate(owned):
        for tensor in tensors:
            owners[recorder.number_of(tensor)] = index
            state = step.optimizer.state.get(tensor, {}) if isinstance(tensor, nn.Parameter) else {}
            for value in state.values():
                if isinstance(value, Tensor):
                    owners[recorder.number_of(value)] = index
            if step.ema is not None and id(tensor) in names:
                owners[recorder.number_of(step.ema.average[names[id(tensor)]])] = index
    return owners


def kinds_of_blocks(blocks: tuple[nn.Module, ...]) -> tuple[int, ...]:
    """Blocks are of one kind if their weights have the same names and shapes."""
    seen: dict[object, int] = {}
    shapes = (tuple((name, tuple(p.shape)) for name, p in block.named_parameters()) for block in blocks)
    return tuple(seen.setdefault(shape, len(seen)) for shape in shapes)


def _note_states(recorder: Recorder, step: TrainingStep, categories: dict[int, str]) -> None:
    for state in step.optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                categories[recorder.number_of(value)] = "optimizer state"


def _marker(
    recorder: Recorder,
    step: TrainingStep,
    categories: dict[int, str],
    beside: dict[int, int],
    gradient_owners: dict[int, int],
) -> Any:
    """Marks the phases; gradients of what stands beside the blocks are put down to them, as the weights are."""

    @contextmanager
    def mark(phase: Phase) -> Iterator[None]:
        recorder.phase = phase
        yield
        if phase == "backward":
            for parameter in step.trained.values():
                if parameter.grad is not None:
                    number = recorder.number_of(parameter.grad)
                    categories[number] = "gradients"
                    if id(parameter) in beside:
                        gradient_owners[number] = beside[id(parameter)]

    return mark


@dataclass(frozen=True)
class _AcceleratorPolicy(PrecisionPolicy):
    """The same precision, with what a CUDA device would do in the place of the CPU's autocast."""

    recorder: Recorder = field(kw_only=True)

    def autocast(self, device_type: str) -> AbstractContextManager[object]:
        low = None if self.compute_dtype == torch.float32 else self.compute_dtype
        return AcceleratorNumerics(self.recorder, low)


class _SteppingScaler(torch.amp.GradScaler):
    """Scales as usual but always steps: whether gradients were finite is not known of fake ones."""

    def _maybe_opt_step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        optimizer.step(*args[1:], **kwargs)
        return None
