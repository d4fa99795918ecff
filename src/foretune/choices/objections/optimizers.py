"""How gradients become new weights: what goes with what."""

from collections.abc import Iterable

from foretune.choices.experiment import Experiment
from foretune.choices.objections.base import DeviceType, Objection, refused, warning
from foretune.choices.optimizers import FOUND_LR_FACTOR
from foretune.choices.training import Optimizer

_LIONS = ("lion", "lion8bit")
# Lion's authors have 0.99; the default of 0.999 is AdamW's.
_LARGEST_LION_DECAY = 0.995
# Optimizers that find the learning rate multiply it by the one they are given.
_SMALLEST_LR_FACTOR = 0.1


def optimizer_objections(experiment: Experiment, device_type: DeviceType | None) -> Iterable[Objection]:
    on_host = experiment.levers.optimizer_offload
    yield from _place_objections(experiment.optimizer, "cpu" if on_host else device_type)
    yield from _compensation_objections(experiment)
    yield from _rate_objections(experiment.optimizer)
    yield from _unused_objections(experiment)
    if experiment.optimizer.spec.averages_weights and experiment.train.ema is not None:
        yield refused(f"train.ema: {experiment.optimizer.kind} already averages the weights. Nearest: train.ema=null")
    if experiment.levers.channels_last and experiment.method.kind == "full":
        yield from _layout_objections(experiment.optimizer)


def _place_objections(optimizer: Optimizer, device_type: DeviceType | None) -> Iterable[Objection]:
    """Where the update runs, which is the host's CPU if the optimizer is there."""
    if optimizer.spec.library == "bitsandbytes" and device_type == "mps":
        yield refused(
            f"optimizer.kind: {optimizer.kind} is bitsandbytes', which has no update for mps. Nearest: "
            "optimizer.kind=adamw, optimizer.kind=adafactor, which needs least memory, or levers.optimizer_offload=true"
        )
    elif optimizer.spec.is_paged and device_type not in (None, "cuda"):
        yield refused(
            f"optimizer.kind: {optimizer.kind} needs CUDA's unified memory, which {device_type} does "
            "not have. Nearest: optimizer.kind=adamw8bit"
        )


def _compensation_objections(experiment: Experiment) -> Iterable[Objection]:
    optimizer = experiment.optimizer
    if optimizer.compensation == "none":
        return
    if optimizer.kind != "adamw":
        yield refused(
            f"optimizer.compensation: {optimizer.compensation} is only supported with adamw, not with "
            f"{optimizer.kind}. Nearest: optimizer.kind=adamw, or optimizer.compensation=none with "
            "levers.optimizer_offload=true, which keeps fp32 weights on the host"
        )
    elif experiment.levers.optimizer_offload:
        yield refused(
            "optimizer.compensation: an optimizer on the host keeps fp32 weights, so there is nothing to compensate. "
            "Nearest: optimizer.compensation=none, or levers.optimizer_offload=false"
        )


def _rate_objections(optimizer: Optimizer) -> Iterable[Objection]:
    if optimizer.spec.finds_lr and optimizer.lr < _SMALLEST_LR_FACTOR:
        yield refused(
            f"optimizer.lr: {optimizer.kind} finds the learning rate and multiplies it by this; with {optimizer.lr:g} "
            f"it would hardly move. Nearest: optimizer.lr={FOUND_LR_FACTOR:g}"
        )
    if optimizer.spec.averages_weights and optimizer.schedule != "constant":
        yield refused(
            f"optimizer.schedule: {optimizer.kind} averages instead of lowering its rate; {optimizer.schedule} would "
            "do both. Nearest: optimizer.schedule=constant"
        )
    if optimizer.spec.averages_weights and optimizer.betas[0] == 0:
        yield refused(
            f"optimizer.betas: {optimizer.kind} trains between its average and its base point, at the first of these; "
            f"at 0 the average is not in it. Nearest: optimizer.betas=[0.9,{optimizer.betas[1]:g}]"
        )
    if optimizer.kind in _LIONS and optimizer.betas[1] > _LARGEST_LION_DECAY:
        yield warning(
            f"optimizer.betas: {optimizer.betas[1]:g} is AdamW's; the authors of Lion have 0.99. "
            "Set optimizer.betas=[0.9,0.99]"
        )


def _unused_objections(experiment: Experiment) -> Iterable[Objection]:
    """What was asked for and changes nothing."""
    optimizer, usual = experiment.optimizer, Optimizer()
    ignored = optimizer.spec.ignored
    if any(getattr(optimizer, name) != getattr(usual, name) for name in ignored):
        keys = " and ".join(f"optimizer.{name}" for name in ignored)
        yield warning(f"{keys} {'has' if len(ignored) == 1 else 'have'} no effect: {optimizer.spec.why_ignored}")
    if experiment.levers.ema_offload and experiment.train.ema is None:
        yield warning("levers.ema_offload has no effect: there is no EMA. Set train.ema={}")


def _layout_objections(optimizer: Optimizer) -> Iterable[Objection]:
    if optimizer.spec.library == "bitsandbytes":
        yield refused(
            f"levers.channels_last: {optimizer.kind} resets the weights to the default memory format. "
            "Nearest: levers.channels_last=false, or optimizer.kind=adamw"
        )
