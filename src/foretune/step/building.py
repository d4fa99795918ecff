"""An experiment and a denoiser become a training step: the same code for real, small and fake models."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import noop_context_fn

from foretune.choices.experiment import Experiment
from foretune.models.family import Family
from foretune.step.ema import MovingAverage
from foretune.step.levers import AppliedLevers, ContextPair, apply_levers
from foretune.step.methods import METHODS, AppliedMethod
from foretune.step.optimizing import build_optimizer
from foretune.step.precision import PrecisionPolicy
from foretune.step.quantizing import Quantized, quantize_denoiser
from foretune.step.training_step import TrainingStep


@dataclass(frozen=True)
class Assembled:
    """A denoiser with all that was asked for attached to it."""

    method: AppliedMethod
    levers: AppliedLevers
    quantized: Quantized | None = None
    """None where the base is in 16 or 32 bits."""


def attach_method(experiment: Experiment, family: Family, denoiser: nn.Module) -> AppliedMethod:
    """Adds what is trained to a denoiser that is on any device, meta included."""
    method = METHODS[experiment.method.kind](experiment.method, family, denoiser)
    method.attach(experiment.train.seed, PrecisionPolicy.of(experiment.train).trained_dtype)
    return method


def assemble(
    experiment: Experiment,
    family: Family,
    denoiser: nn.Module,
    contexts: Callable[[], ContextPair] = noop_context_fn,
    *,
    quantize_on: torch.device | None = None,
) -> Assembled:
    """The base in the bits that were asked for, then the method, then the levers.

    `quantize_on`: where weights are brought, one after the other, to be put into fewer bits; None leaves them.
    """
    quantized = quantize_denoiser(experiment.quantize, family, denoiser, quantize_on)
    method = attach_method(experiment, family, denoiser)
    levers = apply_levers(experiment.levers, family, denoiser, keeps_rng=method.has_dropout, contexts=contexts)
    denoiser.train()
    return Assembled(method, levers, quantized)


def build_step(
    experiment: Experiment,
    family: Family,
    assembled: Assembled,
    device: torch.device,
    *,
    foreach: bool | None = None,
) -> TrainingStep:
    """The step for a denoiser that is already where it will run.

    `foreach` makes updates work on all tensors at once, as torch does by itself on an accelerator (None leaves it to
    torch): one kernel instead of hundreds, and temporaries as large as the trained weights.
    """
    policy = PrecisionPolicy.of(experiment.train)
    method = assembled.method
    trained = method.trained()
    ema = experiment.train.ema
    return TrainingStep(
        family=family,
        denoiser=method.denoiser,
        objective=family.objective(experiment.objective),
        policy=policy,
        trained=trained,
        optimizer=build_optimizer(
            experiment.optimizer,
            trained.values(),
            foreach=foreach,
            seed=experiment.train.seed,
            levers=experiment.levers,
        ),
        scaler=torch.amp.GradScaler(device.type, enabled=policy.needs_loss_scaling),
        ema=MovingAverage(trained, ema.decay, on_host=experiment.levers.ema_offload) if ema is not None else None,
        around_forward=assembled.levers.around_forward,
        foreach=foreach,
        max_grad_norm=experiment.train.max_grad_norm,
        guidance_scale=experiment.objective.guidance_scale,
        dropout_seed=experiment.train.seed if method.has_dropout else None,
    )
