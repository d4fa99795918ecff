"""How gradients become new weights: what goes with what."""

from collections.abc import Iterable

from foretune.choices.experiment import Experiment
from foretune.choices.objections.base import DeviceType, Objection, refused, warning
from foretune.choices.training import Optimizer

_OF_BITSANDBYTES = ("adamw8bit", "paged-adamw8bit", "lion", "lion8bit")
_LIONS = ("lion", "lion8bit")
# Lion's authors have 0.99; the default of 0.999 is AdamW's.
_LARGEST_LION_DECAY = 0.995
# Prodigy multiplies the rate it finds by the one it is given.
_SMALLEST_PRODIGY_LR = 0.1


def optimizer_objections(experiment: Experiment, family: str, device_type: DeviceType | None) -> Iterable[Objection]:  # noqa: ARG001
    on_host = experiment.levers.optimizer_offload
    yield from _place_objections(experiment.optimizer, "cpu" if on_host else device_type)
    yield from _compensation_objections(experiment)
    yield from _rate_objections(experiment.optimizer)
    yield from _unused_objections(experiment)
    if experiment.optimizer.kind == "schedule-free" and experiment.train.ema is not None:
        yield refused("train.ema: schedule-free already averages the weights. Nearest: train.ema=null")
    if experiment.levers.channels_last and experiment.method.kind == "full":
        yield from _layout_objections(experiment.optimizer)


def _place_objections(optimizer: Optimizer, device_type: DeviceType | None) -> Iterable[Objection]:
    """Where the update runs, which is the host's CPU if the optimizer is there."""
    if optimizer.kind in _OF_BITSANDBYTES and device_type == "mps":
        yield refused(
            f"optimizer.kind: {optimizer.kind} is bitsandbytes', which has no update for mps. Nearest: "
            "optimizer.kind=adamw, optimizer.kind=adafactor, which needs least memory, or levers.optimizer_offload=true"
        )
    elif optimizer.kind == "paged-adamw8bit" and device_type not in (None, "cuda"):
        yield refused(
            f"optimizer.kind: paged-adamw8bit needs CUDA's unified memory, which {device_type} does "
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
    if optimizer.kind == "prodigy" and optimizer.lr < _SMALLEST_PRODIGY_LR:
        yield refused(
            f"optimizer.lr: prodigy finds the learning rate and multiplies it by this; with {optimizer.lr:g} it would "
            "hardly move. Nearest: optimizer.lr=1"
        )
    if optimizer.kind == "schedule-free" and optimizer.schedule != "constant":
        yield refused(
            f"optimizer.schedule: schedule-free averages instead of lowering its rate; {optimizer.schedule} would do "
            "both. Nearest: optimizer.schedule=constant"
        )
    if optimizer.kind == "schedule-free" and optimizer.betas[0] == 0:
        yield refused(
            "optimizer.betas: schedule-free trains between its average and its base point, at the first of these; at 0 "
            f"the average is not in it. Nearest: optimizer.betas=[0.9,{optimizer.betas[1]:g}]"
        )
    if optimizer.kind in _LIONS and optimizer.betas[1] > _LARGEST_LION_DECAY:
        yield warning(
            f"optimizer.betas: {optimizer.betas[1]:g} is AdamW's; the authors of Lion have 0.99. "
            "Set optimizer.betas=[0.9,0.99]"
        )


def _unused_objections(experiment: Experiment) -> Iterable[Objection]:
    """What was asked for and changes nothing."""
    optimizer, usual = experiment.optimizer, Optimizer()
    if optimizer.kind == "adafactor" and (optimizer.betas != usual.betas or optimizer.eps != usual.eps):
        yield warning("optimizer.betas and optimizer.eps have no effect: adafactor has its own")
    if optimizer.kind in _LIONS and optimizer.eps != usual.eps:
        yield warning("optimizer.eps has no effect: Lion takes the sign of its average and divides by nothing")
    if experiment.levers.ema_offload and experiment.train.ema is None:
        yield warning("levers.ema_offload has no effect: there is no EMA. Set train.ema={}")


def _layout_objections(optimizer: Optimizer) -> Iterable[Objection]:
    if optimizer.kind in _OF_BITSANDBYTES:
        yield refused(
            f"levers.channels_last: {optimizer.kind} resets the weights to the default memory format. "
            "Nearest: levers.channels_last=false, or optimizer.kind=adamw"
        )
