"""The capability matrix: what goes together. Plan, train and sweep ask this one.

What does not work is refused, with the nearest choice that does.
"""

from collections.abc import Iterable

from foretune.catalog import TRAINABLE, family_facts
from foretune.choices.experiment import Experiment
from foretune.choices.objections.base import DeviceType, Objection, refused
from foretune.choices.objections.length import length_objections
from foretune.choices.objections.levers import lever_objections
from foretune.choices.objections.methods import method_objections
from foretune.choices.objections.numbers import number_objections
from foretune.choices.objections.optimizers import optimizer_objections
from foretune.choices.objections.parallel import parallel_objections
from foretune.choices.objections.quantization import quantization_objections
from foretune.choices.objections.situation import (
    distilled_objections,
    objective_objections,
    text_objections,
    video_objections,
)


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
    facts = family_facts(family)
    if not facts.is_trainable and not only_planned:
        # No guess: families with like names have little else in common.
        hint = f"Trainable: {_listed(TRAINABLE)}."
        return (refused(f"model: models of the family {family!r} cannot be trained yet. {hint}"),)
    return (
        *length_objections(experiment),
        *number_objections(experiment, device_type),
        *method_objections(experiment),
        *quantization_objections(experiment, facts, device_type),
        *optimizer_objections(experiment, device_type),
        *lever_objections(experiment, facts, device_type),
        *parallel_objections(experiment, facts, device_type, only_planned=only_planned),
        *text_objections(experiment, facts),
        *video_objections(experiment, facts, only_planned=only_planned),
        *objective_objections(experiment, facts),
        *(distilled_objections(experiment, distilled=distilled) if facts.is_trainable else ()),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
