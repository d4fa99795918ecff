"""Which numbers go together: of the computation, of the trained weights, of what makes up for their rounding."""

from collections.abc import Iterable

from foretune.choices.experiment import Experiment
from foretune.choices.objections.base import DeviceType, Objection, refused, warning

# Half of the distance to the next bf16 number is at least 1/512: a smaller decrease is rounded away.
_LARGEST_BF16_DECAY = 1 - 1 / 512


def number_objections(experiment: Experiment, device_type: DeviceType | None) -> Iterable[Objection]:
    train = experiment.train
    if train.precision == "fp16" and train.loss_scaling == "off":
        yield refused(
            "train.loss_scaling: fp16 without loss scaling loses small gradients to underflow. "
            "Nearest: train.loss_scaling=dynamic, or train.precision=bf16, which needs no scaling"
        )
    if train.precision == "tf32" and device_type not in (None, "cuda"):
        yield refused(
            f"train.precision: tf32 needs an NVIDIA GPU; {device_type} does not support it. "
            "Nearest: train.precision=fp32"
        )
    yield from _weight_objections(experiment)


def _weight_objections(experiment: Experiment) -> Iterable[Objection]:
    train, optimizer = experiment.train, experiment.optimizer
    if train.weight_dtype == "fp32":
        if optimizer.compensation != "none":
            yield refused(
                f"optimizer.compensation: {optimizer.compensation} keeps what bf16 weights lose to rounding; these are "
                "fp32. Nearest: optimizer.compensation=none, or train.weight_dtype=bf16"
            )
        return
    if train.precision != "bf16":
        yield refused(
            f"train.weight_dtype: weights in bf16 do not go with train.precision={train.precision}. "
            "Nearest: train.precision=bf16, or train.weight_dtype=fp32"
        )
    if experiment.levers.optimizer_offload:
        return  # what is updated is an fp32 copy
    if optimizer.compensation == "none":
        kept = "optimizer.compensation=kahan keeps them, for 2 bytes a weight"
        if optimizer.kind != "adamw":
            kept = "levers.optimizer_offload=true keeps them, or optimizer.kind=adamw with optimizer.compensation=kahan"
        yield warning(f"train.weight_dtype: updates below about 1/256 of a bf16 weight are lost to rounding. {kept}")
    yield from _average_objections(experiment)


def _average_objections(experiment: Experiment) -> Iterable[Objection]:
    """Averages that have the weights' type, and move by less than it can tell."""
    optimizer = experiment.optimizer
    if optimizer.spec.finds_lr and experiment.method.kind == "full":
        yield refused(
            f"train.weight_dtype: {optimizer.kind} starts with updates of a millionth, which bf16 weights lose to "
            "rounding. Nearest: train.weight_dtype=fp32, or levers.optimizer_offload=true"
        )
    if optimizer.spec.averages_weights:
        yield refused(
            f"train.weight_dtype: {optimizer.kind} moves its average by ever smaller steps, which bf16 rounds away. "
            "Nearest: train.weight_dtype=fp32, or levers.optimizer_offload=true"
        )
    elif (
        optimizer.spec.has_weight_dtype
        and "betas" not in optimizer.spec.ignored
        and optimizer.compensation != "stochastic"
        and optimizer.betas[1] > _LARGEST_BF16_DECAY
    ):
        yield warning(
            f"optimizer.betas: in bf16 an average that decays by {optimizer.betas[1]} a step is rounded back to what "
            "it was, so that the average of squared gradients only ever grows. optimizer.betas=[0.9,0.99] lets it fall"
        )
