"""The capability matrix: what goes together. Plan, train and sweep ask this one.

A row is a family; a cell that is not listed is refused, with the nearest listed one named.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from foretune.choices.experiment import Experiment
from foretune.core.errors import closest


@dataclass(frozen=True, kw_only=True)
class Capability:
    """What a model family can be asked for."""

    pipelines: tuple[str, ...]
    """Names of the pipeline classes, as they stand in a checkpoint's model_index.json."""
    methods: tuple[str, ...] = ("full", "lora")
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    has_text: bool = True
    has_latents: bool = True
    max_devices: int = 1


TRAINABLE: dict[str, Capability] = {
    "ddpm": Capability(pipelines=("DDPMPipeline",), has_text=False, has_latents=False),
    "sd3": Capability(pipelines=("StableDiffusion3Pipeline",)),
    "flux": Capability(pipelines=("FluxPipeline",)),
}


# Half of the distance to the next bf16 number is at least 1/512: a smaller decrease is rounded away.
_LARGEST_BF16_DECAY = 1 - 1 / 512


@dataclass(frozen=True)
class Objection:
    """Something that speaks against an experiment."""

    severity: Literal["refused", "warning"]
    text: str


def family_of_pipeline(pipeline_class: str) -> str | None:
    """The trainable family whose checkpoints name this pipeline class."""
    for family, capability in TRAINABLE.items():
        if pipeline_class in capability.pipelines:
            return family
    return None


def objections(
    experiment: Experiment, family: str, *, distilled: bool | None, only_planned: bool = False
) -> tuple[Objection, ...]:
    """All that speaks against running this experiment on a model of this family, or against planning it.

    A plan needs the architecture alone, so families that cannot be trained yet can be planned.
    """
    if family not in TRAINABLE and only_planned:
        planned = Capability(pipelines=())
        return (
            *_precision_objections(experiment),
            *_weight_objections(experiment),
            *_device_objections(experiment, planned, family),
        )
    if family not in TRAINABLE:
        guess = closest(family, TRAINABLE)
        hint = f"The nearest family that can be is {guess!r}." if guess else f"Trainable: {_listed(TRAINABLE)}."
        return (Objection("refused", f"model: models of the family {family!r} cannot be trained yet. {hint}"),)
    capability = TRAINABLE[family]
    return (
        *_unlisted("method.kind", experiment.method.kind, capability.methods, family),
        *_unlisted("train.precision", experiment.train.precision, capability.precisions, family),
        *_precision_objections(experiment),
        *_weight_objections(experiment),
        *_device_objections(experiment, capability, family),
        *_text_objections(experiment, capability, family),
        *_distilled_objections(experiment, distilled=distilled),
    )


def _unlisted(key: str, asked: str, supported: tuple[str, ...], family: str) -> Iterable[Objection]:
    if asked not in supported:
        nearest = closest(asked, supported) or supported[0]
        yield Objection("refused", f"{key}: {asked!r} does not work for {family}. Nearest: {key}={nearest}")


def _precision_objections(experiment: Experiment) -> Iterable[Objection]:
    if experiment.train.precision == "fp16" and experiment.train.loss_scaling == "off":
        yield Objection(
            "refused",
            "train.loss_scaling: fp16 without loss scaling loses small gradients to underflow. "
            "Nearest: train.loss_scaling=dynamic, or train.precision=bf16, which needs no scaling",
        )


def _weight_objections(experiment: Experiment) -> Iterable[Objection]:
    train, optimizer = experiment.train, experiment.optimizer
    if train.weights == "fp32":
        if optimizer.compensation != "none":
            yield Objection(
                "refused",
                f"optimizer.compensation: {optimizer.compensation} keeps what bf16 weights lose to rounding; these are "
                "fp32. Nearest: optimizer.compensation=none, or train.weights=bf16",
            )
        return
    if train.precision != "bf16":
        yield Objection(
            "refused",
            f"train.weights: weights in bf16 do not go with train.precision={train.precision}. "
            "Nearest: train.precision=bf16, or train.weights=fp32",
        )
    if optimizer.compensation == "none":
        yield Objection(
            "warning",
            "train.weights: updates below about 1/256 of a bf16 weight are lost to rounding. "
            "optimizer.compensation=kahan keeps them, for 2 bytes a weight",
        )
    if optimizer.betas[1] > _LARGEST_BF16_DECAY:
        yield Objection(
            "warning",
            f"optimizer.betas: in bf16 an average that decays by {optimizer.betas[1]} a step is rounded back to what "
            "it was, so that the average of squared gradients only ever grows. optimizer.betas=[0.9,0.99] lets it fall",
        )


def _device_objections(experiment: Experiment, capability: Capability, family: str) -> Iterable[Objection]:
    devices = experiment.parallel.devices
    if devices > capability.max_devices:
        yield Objection(
            "refused",
            f"parallel.devices: {devices} devices are not supported for {family} yet. Nearest: "
            f"parallel.devices={capability.max_devices} with train.gradient_accumulation="
            f"{experiment.train.gradient_accumulation * devices}, which makes the same optimizer steps",
        )


def _text_objections(experiment: Experiment, capability: Capability, family: str) -> Iterable[Objection]:
    if not capability.has_text and experiment.data.caption_dropout > 0:
        yield Objection("warning", f"data.caption_dropout has no effect: {family} models take no captions")


def _distilled_objections(experiment: Experiment, *, distilled: bool | None) -> Iterable[Objection]:
    if not distilled:
        return
    if experiment.method.kind == "full" and "distilled-base" not in experiment.accept:
        yield Objection(
            "refused",
            "method.kind: full fine-tuning of a distilled base tends to blur or collapse. Nearest: method.kind=lora, "
            "or an undistilled base (flux.1-dev for flux.1-schnell); to do it all the same: accept=[distilled-base]",
        )
    else:
        yield Objection(
            "warning",
            "the base is distilled to few sampling steps: fine-tuning it with the plain objective tends to undo that. "
            "Look at samples early, or train on the undistilled base (flux.1-dev for flux.1-schnell)",
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
