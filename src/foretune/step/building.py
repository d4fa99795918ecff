"""Builds a training step from an experiment and a denoiser: the same code for real, small and fake models."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import noop_context_fn

from foretune.choices.experiment import Experiment
from foretune.models.family import Family
from foretune.step.ema import MovingAverage
from foretune.step.engine import ALONE, Engine
from foretune.step.levers import AppliedLevers, ContextPair, apply_levers
from foretune.step.methods import METHODS, AppliedMethod
from foretune.step.optimizing import build_optimizer
from foretune.step.precision import PrecisionPolicy
from foretune.step.quantizing import Quantized, quantize_denoiser
from foretune.step.training_step import TrainingStep


@dataclass(frozen=True)
class Assembled:
    """A denoiser with quantisation, method and levers applied."""

    method: AppliedMethod
    levers: AppliedLevers
    quantized: Quantized | None = None
    """None if the base is not quantised."""


def attach_method(experiment: Experiment, family: Family, denoiser: nn.Module) -> AppliedMethod:
    """Attaches the training method to a denoiser on any device, including meta."""
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
    quantized: Quantized | None = None,
) -> Assembled:
    """Quantises the base, attaches the method and applies the levers, in this order.

    `quantize_on` is the device to which weights are moved, one by one, to be quantised; None leaves them where
    they are. `quantized` is the result if the base was quantised while it was loaded.
    """
    if quantized is None:
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
    engine: Engine = ALONE,
) -> TrainingStep:
    """Returns the training step for a denoiser that is already on its device.

    With `foreach`, the optimizer updates all tensors at once: one kernel instead of hundreds, and temporaries as large
    as the trained weights. None leaves the choice to torch, which does so on an accelerator.
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
        engine=engine,
    )
