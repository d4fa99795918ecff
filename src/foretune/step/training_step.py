"""The training step. Plans run it on fake tensors, tests on small models, and runs on hardware."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from foretune.core.draws import derive_seed
from foretune.core.vocabulary import StepPhase
from foretune.data.batch import Batch
from foretune.models.family import Family
from foretune.models.objectives import Objective
from foretune.step.clipping import clip_gradients
from foretune.step.ema import MovingAverage
from foretune.step.engine import ALONE, Engine
from foretune.step.optimizers.base import Updater
from foretune.step.precision import PrecisionPolicy
from foretune.step.sample_loss import clean_sample, sample_losses


class PhaseMarker(Protocol):
    """Called by the step at the start and end of each phase, for a planner or a timer."""

    def __call__(self, phase: StepPhase) -> AbstractContextManager[object]: ...


def unmarked(phase: StepPhase) -> AbstractContextManager[object]:  # noqa: ARG001 - the default marker
    return nullcontext()


@dataclass(frozen=True)
class StepOutcome:
    """Tensors on the device. Reading them synchronises, so the loop reads them later."""

    loss: Tensor
    grad_norm: Tensor | None


@dataclass
class TrainingStep:
    """Everything that one optimizer step needs."""

    family: Family
    denoiser: nn.Module
    objective: Objective
    policy: PrecisionPolicy
    trained: dict[str, nn.Parameter]
    optimizer: Updater
    scaler: torch.amp.GradScaler
    ema: MovingAverage | None
    around_forward: Callable[[], AbstractContextManager[object]]
    """A context around each forward pass, which offloads activations."""
    foreach: bool | None
    """Whether updates work on all tensors at once; None leaves it to torch."""
    max_grad_norm: float | None
    guidance_scale: float
    dropout_seed: int | None
    """None if no forward pass draws random numbers."""
    engine: Engine = ALONE
    """How several processes share the model."""

    def __call__(
        self, step: int, lr: float, batches: Iterable[Batch], num_batches: int, mark: PhaseMarker = unmarked
    ) -> StepOutcome:
        """Runs forward and backward over the batches, then updates the weights once."""
        with self.policy.products():
            return self._step(step, lr, batches, num_batches, mark)

    def _step(self, step: int, lr: float, batches: Iterable[Batch], num_batches: int, mark: PhaseMarker) -> StepOutcome:
        total: Tensor | None = None
        # Before the backward pass, because some optimizers update in it.
        self.optimizer.set_lr(lr)
        for micro, batch in enumerate(batches):
            self._seed_dropout(step, micro)
            with self.engine.synchronising(is_last=micro == num_batches - 1):
                with mark(StepPhase.FORWARD), self.around_forward():
                    loss = self.loss(batch) / num_batches
                with mark(StepPhase.BACKWARD):
                    self.scaler.scale(loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None, "a step has at least one batch"
        with mark(StepPhase.OPTIMIZER):
            grad_norm = self._update()
        return StepOutcome(self.engine.mean(total), grad_norm)

    def loss(self, batch: Batch) -> Tensor:
        """Returns the weighted squared error of the prediction, averaged over the samples."""
        return sample_losses(
            self.engine.module or self.denoiser,
            batch,
            family=self.family,
            objective=self.objective,
            policy=self.policy,
            guidance_scale=self.guidance_scale,
            finish=torch.mean,
        )

    def clean(self, batch: Batch) -> Tensor:
        """Returns the clean sample: pixels, or latents drawn from their distribution."""
        return clean_sample(self.family, batch)

    def shown_weights(self) -> dict[str, Tensor]:
        """Returns the weights to use outside training, on their device, if they differ from the trained ones."""
        if self.ema is not None:
            return {name: average.to(self.trained[name].device) for name, average in self.ema.average.items()}
        averages = ((name, self.optimizer.averaged(weight)) for name, weight in self.trained.items())
        return {name: average for name, average in averages if average is not None}

    def _update(self) -> Tensor | None:
        grad_norm = None
        if self.max_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            grad_norm = clip_gradients(self.trained.values(), self.max_grad_norm, foreach=self.foreach)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update()
        return grad_norm

    def _seed_dropout(self, step: int, micro: int) -> None:
        if self.dropout_seed is not None:
            # Each process has samples of its own, so it drops out others too.
            of_process = (self.engine.rank,) if self.engine.rank else ()
            torch.manual_seed(derive_seed(self.dropout_seed, "dropout", step, micro, *of_process))
