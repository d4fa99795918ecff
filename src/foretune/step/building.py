"""An experiment and a denoiser become a training step: the same code for real, small and fake models."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import noop_context_fn

from foretune.choices.experiment import Experiment
from foretune.models.family import Family
from foretune.step.checkpointing import ContextPair, apply_checkpointing
from foretune.step.ema import MovingAverage
from foretune.step.methods import METHODS, AppliedMethod
from foretune.step.optimizing import build_optimizer
from foretune.step.precision import PrecisionPolicy
from foretune.step.training_step import TrainingStep


def attach_method(
    experiment: Experiment,
    family: Family,
    denoiser: nn.Module,
    contexts: Callable[[], ContextPair] = noop_context_fn,
) -> AppliedMethod:
    """Adds the method and the levers to a denoiser that is on any device, meta included."""
    method = METHODS[experiment.method.kind](experiment.method, family, denoiser)
    method.attach(experiment.train.seed, PrecisionPolicy.of(experiment.train).trained_dtype)
    apply_checkpointing(
        family.blocks(denoiser),
        experiment.levers.gradient_checkpointing,
        keeps_rng=method.has_dropout,
        contexts=contexts,
    )
    denoiser.train()
    return method


def build_step(
    experiment: Experiment,
    family: Family,
    method: AppliedMethod,
    device: torch.device,
    *,
    foreach: bool | None = None,
) -> TrainingStep:
    """The step for a denoiser that is already where it will run.

    `foreach` makes updates work on all tensors at once, as torch does by itself on an accelerator (None leaves it to
    torch): one kernel instead of hundreds, and temporaries as large as the trained weights.
    """
    policy = PrecisionPolicy.of(experiment.train)
    trained = method.trained()
    ema = experiment.train.ema
    return TrainingStep(
        family=family,
        denoiser=method.denoiser,
        objective=family.objective(experiment.objective),
        policy=policy,
        trained=trained,
        optimizer=build_optimizer(experiment.optimizer, trained.values(), foreach=foreach),
        scaler=torch.amp.GradScaler(device.type, enabled=policy.needs_loss_scaling),
        ema=MovingAverage(trained, ema.decay) if ema is not None else None,
        foreach=foreach,
        max_grad_norm=experiment.train.max_grad_norm,
        guidance_scale=experiment.objective.guidance_scale,
        dropout_seed=experiment.train.seed if method.has_dropout else None,
    )
