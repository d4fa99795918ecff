"""The capability matrix: what goes together. Plan, train and sweep ask this one.

A row is a family; a cell that is not listed is refused, with the nearest listed one named.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from foretune.choices.experiment import Experiment
from foretune.choices.method import METHODS
from foretune.choices.objections.base import DeviceType, Objection, refused
from foretune.choices.objections.length import length_objections
from foretune.choices.objections.levers import lever_objections
from foretune.choices.objections.methods import method_objections
from foretune.choices.objections.numbers import number_objections
from foretune.choices.objections.optimizers import optimizer_objections
from foretune.choices.objections.quantization import quantization_objections
from foretune.choices.objections.situation import device_count_objections, distilled_objections, text_objections
from foretune.choices.training import Precision
from foretune.core.errors import closest


@dataclass(frozen=True, kw_only=True)
class Capability:
    """What a model family can be asked for."""

    pipelines: tuple[str, ...]
    """Names of the pipeline classes, as they stand in a checkpoint's model_index.json."""
    methods: tuple[str, ...] = tuple(METHODS)
    precisions: tuple[str, ...] = get_args(Precision)
    has_text: bool = True
    has_latents: bool = True
    max_devices: int = 1


TRAINABLE: dict[str, Capability] = {
    "ddpm": Capability(pipelines=("DDPMPipeline",), has_text=False, has_latents=False),
    "sd3": Capability(pipelines=("StableDiffusion3Pipeline",)),
    "flux": Capability(pipelines=("FluxPipeline",)),
}


def family_of_pipeline(pipeline_class: str) -> str | None:
    """The trainable family whose checkpoints name this pipeline class."""
    for family, capability in TRAINABLE.items():
        if pipeline_class in capability.pipelines:
            return family
    return None


def objections(
    experiment: Experiment,
    family: str,
    *,
    distilled: bool | None,
    only_planned: bool = False,
    device_type: DeviceType | None = None,
) -> tuple[Objection, ...]:
    """All that speaks against running this experiment on a model of this family, or against planning it.

    A plan needs the architecture alone, so families that cannot be trained yet can be planned. Without a device type
    nothing is said of what some devices cannot do.
    """
    if family not in TRAINABLE and not only_planned:
        guess = closest(family, TRAINABLE)
        hint = f"The nearest family that can be is {guess!r}." if guess else f"Trainable: {_listed(TRAINABLE)}."
        return (refused(f"model: models of the family {family!r} cannot be trained yet. {hint}"),)
    capability = TRAINABLE.get(family, Capability(pipelines=()))
    return (
        *_unlisted("method.kind", experiment.method.kind, capability.methods, family),
        *_unlisted("train.precision", experiment.train.precision, capability.precisions, family),
        *length_objections(experiment),
        *number_objections(experiment, device_type),
        *method_objections(experiment, family, device_type),
        *quantization_objections(experiment, family, device_type),
        *optimizer_objections(experiment, family, device_type),
        *lever_objections(experiment, family, device_type),
        *device_count_objections(experiment, family, capability.max_devices),
        *text_objections(experiment, family, has_text=capability.has_text),
        *(distilled_objections(experiment, distilled=distilled) if family in TRAINABLE else ()),
    )


def _unlisted(key: str, asked: str, supported: tuple[str, ...], family: str) -> Iterable[Objection]:
    if asked not in supported:
        nearest = closest(asked, supported) or supported[0]
        yield refused(f"{key}: {asked!r} does not work for {family}. Nearest: {key}={nearest}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
