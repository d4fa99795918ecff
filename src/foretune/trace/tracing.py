"""Records one training step on fake tensors: the real architecture and the real step, without weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from foretune.accelerator.copies import watching_host
from foretune.choices.experiment import Experiment
from foretune.choices.method import LowRank
from foretune.core.values.step_trace import STATE_8BIT, STATE_8BIT_SCALES
from foretune.core.vocabulary import MemoryPart, StepPhase
from foretune.data.batch import Batch
from foretune.models.family import GUIDE, Family
from foretune.step.building import Assembled, assemble, build_step
from foretune.step.levers.offloading import moving_from
from foretune.step.methods import METHODS
from foretune.step.optimizers.in_backward import InBackward
from foretune.step.precision import PrecisionPolicy
from foretune.step.quantizing.float8_products import as_on_gpus
from foretune.step.training_step import TrainingStep
from foretune.step.weights import num_weights
from foretune.trace.accelerator import AcceleratorNumerics, workspace_bytes
from foretune.trace.answers import AssumedData
from foretune.trace.blocks import BlockTracker, Unit, kinds_of_units, units_of
from foretune.trace.cpu_workspace import CpuWorkspaces
from foretune.trace.fake_model import materialise
from foretune.trace.operator_memo import FakeResults, OperatorMemo
from foretune.trace.optimizer_ops import AssumedNumbers, assume_large_weights
from foretune.trace.recorder import Recorder, Recording

Numerics = Literal["cuda", "cpu"]

# Steps are recorded at sizes with small activations. Anything smaller than this is a scalar per sample.
_SMALL_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """The sizes that a step's memory and work depend on."""

    batch_size: int
    height_px: int
    width_px: int
    num_text_tokens: int
    num_frames: int = 1


@dataclass(frozen=True)
class TracedStep:
    """A recording of one optimizer step in steady state, and the categories of its storages."""

    recording: Recording
    categories: dict[int, str]
    """Category by storage number, if known: weights, gradients, optimizer state, moving average."""
    owners: dict[int, int]
    """Block by storage number, for what belongs to a block's weights."""
    block_kinds: tuple[int, ...]
    """Kind of each block: equal numbers are equal blocks."""
    num_trained_params: int
    num_params: int
    num_cpu_kernels: Mapping[str, int] = field(default_factory=dict)
    """Low-precision kernels that oneDNN builds for this step and caches, outside any tensor: matmul, conv."""
    on_host: frozenset[int] = frozenset()
    """Numbers of the storages in host memory, if the step runs on another device."""


def trace_step(
    experiment: Experiment,
    family: Family,
    sizes: StepSizes,
    numerics: Numerics,
    denoiser: nn.Module | None = None,
    memo: OperatorMemo | None = None,
    watch: Callable[[TrainingStep, Recorder], None] | None = None,
) -> TracedStep:
    """Runs one optimizer step on fake tensors, after the optimizer has created its state, so that all later steps are
    like it. `watch` gets the step and its recorder before it runs.
    """
    policy = PrecisionPolicy.of(experiment.train)
    if denoiser is None:
        denoiser = family.denoiser_on_meta(METHODS[experiment.method.kind].load_dtype(policy))
    units = units_of(family, denoiser, experiment.levers)
    tracker = BlockTracker(units)
    workspaces = CpuWorkspaces(torch.get_num_threads()) if numerics == "cpu" else None
    on_accelerator = numerics == "cuda"
    mode, recorder = _recorder(tracker, workspaces, memo or OperatorMemo(), on_accelerator=on_accelerator)
    assumed = AssumedData()
    if on_accelerator:
        policy = _AcceleratorPolicy(policy.name, policy.weights, recorder=recorder)
    autocast = partial(policy.autocast, "cuda") if on_accelerator else nullcontext
    recomputing = partial(_recomputing, recorder, assumed, autocast)
    assembled = assemble(experiment, family, denoiser, lambda: (nullcontext(), recomputing()))
    accumulation = experiment.train.gradient_accumulation
    try:
        with mode, recorder, recorder.watching_resizes(), watching_host(recorder.moved_to_host), assumed:
            step, categories = _begun(experiment, family, assembled, recorder, policy)
            if watch is not None:
                watch(step, recorder)
            recorder.phase = StepPhase.INPUTS
            tracker.begin_forward()
            batches = (_fake_batch(family, sizes, recorder) for _ in range(accumulation))
            beside_units = _beside_units(family, denoiser, units)
            owned = _owned(units, beside_units)
            # Some states are replaced at each step: both the old and the new ones belong to a block.
            before = _owners(recorder, step, owned)
            recorder.blocks_of |= before
            gradient_owners: dict[int, int] = {}
            beside = {id(p): i for i, unit in enumerate(beside_units) for module in unit for p in module.parameters()}
            marker = _marker(recorder, step, categories, beside, gradient_owners)
            with _both(as_on_gpus(), moving_from(_SMALL_BYTES, sizes.batch_size)) if on_accelerator else nullcontext():
                step(1, 1e-4, batches, accumulation, marker)
            recorder.phase = "between"
            owners = {**before, **_owners(recorder, step, owned), **gradient_owners}
            recording = recorder.finish()
    finally:
        tracker.remove()
    return TracedStep(
        recording,
        categories,
        owners=owners,
        block_kinds=kinds_of_units(units),
        num_trained_params=sum(p.numel() for p in step.trained.values()),
        num_params=num_weights(denoiser),
        num_cpu_kernels={} if workspaces is None else workspaces.num_kernels,
        on_host=frozenset(recorder.on_host),
    )


@contextmanager
def _recomputing(
    recorder: Recorder, assumed: AssumedData, autocast: Callable[[], AbstractContextManager[object]]
) -> Iterator[None]:
    with recorder.recomputing(), assumed, autocast():
        yield


def _recorder(
    tracker: BlockTracker, workspaces: CpuWorkspaces | None, memo: OperatorMemo, *, on_accelerator: bool
) -> tuple[FakeTensorMode, Recorder]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = FakeResults(mode, memo)
    workspace = workspace_bytes if on_accelerator else workspaces
    return mode, Recorder(tracker.current, workspace, tells_host=on_accelerator, fake_results=fakes)


def _begun(
    experiment: Experiment, family: Family, assembled: Assembled, recorder: Recorder, policy: PrecisionPolicy
) -> tuple[TrainingStep, dict[int, str]]:
    """Builds the step with its model and optimizer state; returns it and the category of each lasting storage."""
    denoiser, on_accelerator = assembled.method.denoiser, isinstance(policy, _AcceleratorPolicy)
    materialise(denoiser)
    if assembled.levers.swapped is not None:
        assembled.levers.swapped.take_to_host(torch.device("cpu"))
    with AssumedNumbers():
        step = build_step(experiment, family, assembled, torch.device("cpu"), foreach=on_accelerator or None)
    step.policy = policy
    step.scaler = _SteppingScaler("cpu", enabled=policy.needs_loss_scaling)
    categories = _lasting(recorder, step, denoiser)
    recorder.frozen = {number for number, part in categories.items() if part == MemoryPart.FROZEN_WEIGHTS}
    if on_accelerator and isinstance(experiment.method, LowRank):
        assume_large_weights(step.optimizer)
    _make_optimizer_state(step)
    _note_states(recorder, step, categories)
    return step, categories


@contextmanager
def _both(outer: AbstractContextManager[object], inner: AbstractContextManager[object]) -> Iterator[None]:
    with outer, inner:
        yield


def _fake_batch(family: Family, sizes: StepSizes, recorder: Recorder) -> Batch:
    recorder.phase = StepPhase.INPUTS
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
        categories[recorder.number_of(parameter)] = (
            MemoryPart.TRAINED_WEIGHTS if parameter.requires_grad else MemoryPart.FROZEN_WEIGHTS
        )
    for buffer in denoiser.buffers():
        categories[recorder.number_of(buffer)] = MemoryPart.FROZEN_WEIGHTS
    if step.ema is not None:
        for average in step.ema.average.values():
            categories[recorder.number_of(average)] = MemoryPart.EMA
    return categories


def _make_optimizer_state(step: TrainingStep) -> None:
    """Creates the optimizer's state with a step on zero gradients, without running the model."""
    with AssumedNumbers():
        for parameter in step.trained.values():
            parameter.grad = torch.zeros_like(parameter)
            if isinstance(step.optimizer, InBackward):
                step.optimizer.step()
        step.optimizer.step()
    step.optimizer.zero_grad(set_to_none=True)


def _beside_units(family: Family, denoiser: nn.Module, units: tuple[Unit, ...]) -> list[Unit]:
    """Returns modules outside the blocks that exist once per block, grouped by the unit of their block."""
    rest = list(family.beside_blocks(denoiser))
    return [tuple(rest.pop(0) for _ in unit if rest) for unit in units]


def _owned(units: tuple[Unit, ...], beside: list[Unit]) -> list[list[Tensor]]:
    """Returns the weights and buffers that exist once per unit of blocks."""
    modules = [(*unit, *others) for unit, others in zip(units, beside, strict=True)]
    return [[t for module in group for t in (*module.parameters(), *module.buffers())] for group in modules]


def _owners(recorder: Recorder, step: TrainingStep, owned: list[list[Tensor]]) -> dict[int, int]:
    """Returns the block of every weight, and of its optimizer state and moving average."""
    owners: dict[int, int] = {}
    names = {id(parameter): name for name, parameter in step.trained.items()}
    for index, tensors in enumerate(owned):
        for tensor in tensors:
            owners[recorder.number_of(tensor)] = index
            if id(tensor) not in names:
                continue
            name = names[id(tensor)]
            for kept in step.optimizer.kept(step.trained[name]):
                owners[recorder.number_of(kept)] = index
            if step.ema is not None:
                owners[recorder.number_of(step.ema.average[name])] = index
    return owners


def _note_states(recorder: Recorder, step: TrainingStep, categories: dict[int, str]) -> None:
    for kept in step.optimizer.kept_once():
        categories[recorder.number_of(kept)] = MemoryPart.OPTIMIZER_STATE
    for weight in step.trained.values():
        states = step.optimizer.kept(weight)
        is_8bit = any(state.dtype == torch.uint8 for state in states)
        for state in states:
            category = _category_8bit(state, weight) if is_8bit else MemoryPart.OPTIMIZER_STATE
            categories[recorder.number_of(state)] = category


def _category_8bit(state: Tensor, weight: Tensor) -> str:
    if state.dtype == torch.uint8:
        return STATE_8BIT
    # An optimizer on the host also has a copy of the weight.
    return STATE_8BIT_SCALES if state.numel() < weight.numel() else MemoryPart.OPTIMIZER_STATE


def _marker(
    recorder: Recorder,
    step: TrainingStep,
    categories: dict[int, str],
    beside: dict[int, int],
    gradient_owners: dict[int, int],
) -> Any:
    """Marks the phases; attributes gradients of modules that exist once per block to the block, like their weights."""

    @contextmanager
    def mark(phase: StepPhase) -> Iterator[None]:
        recorder.phase = phase
        with AssumedNumbers() if phase == StepPhase.OPTIMIZER else nullcontext():
            yield
        if phase == StepPhase.BACKWARD:
            for parameter in step.trained.values():
                if parameter.grad is not None:
                    number = recorder.number_of(parameter.grad)
                    categories[number] = MemoryPart.GRADIENTS
                    if id(parameter) in beside:
                        recorder.blocks_of[number] = gradient_owners[number] = beside[id(parameter)]

    return mark


@dataclass(frozen=True)
class _AcceleratorPolicy(PrecisionPolicy):
    """The same precision, with a CUDA device's numerics instead of the CPU's autocast."""

    recorder: Recorder = field(kw_only=True)

    def autocast(self, device_type: str) -> AbstractContextManager[object]:
        low = None if self.compute_dtype == torch.float32 else self.compute_dtype
        return AcceleratorNumerics(self.recorder, low)


class _SteppingScaler(torch.amp.GradScaler):
    """Scales as usual but always steps: whether fake gradients are finite is unknown."""

    def _maybe_opt_step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        optimizer.step(*args[1:], **kwargs)
        return None
