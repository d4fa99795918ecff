"""What speaks against an experiment because of the model it is for, or of where it runs."""

from collections.abc import Iterable

from foretune.catalog import FamilyFacts
from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter
from foretune.choices.objections.base import Objection, refused, warning
from foretune.choices.training import ObjectiveChoice


def text_objections(experiment: Experiment, facts: FamilyFacts) -> Iterable[Objection]:
    if not facts.has_text and experiment.data.caption_dropout > 0:
        yield warning(f"data.caption_dropout has no effect: {facts.name} models take no captions")
    if facts.text_is_fixed and experiment.data.max_text_tokens is not None:
        yield warning(
            f"data.max_text_tokens has no effect: captions of {facts.name} models always have the same length"
        )


def video_objections(experiment: Experiment, facts: FamilyFacts, *, only_planned: bool) -> Iterable[Objection]:
    data = experiment.data
    if not facts.is_video:
        if (data.num_frames or 1) > 1:
            yield refused(f"data.num_frames: {facts.name} models make images. Nearest: leave it out")
        if data.kind == "clips":
            yield refused(
                f"data.kind: clips are for models that make videos, and {facts.name} models make images. "
                "Nearest: data.kind=folder, with images"
            )
    elif data.kind not in ("clips", "shards", "shapes") and data.num_frames != 1 and not only_planned:
        yield refused(
            f"data.kind: {data.kind} holds images, and clips of {data.num_frames or 'several'} frames are requested. "
            "Nearest: data.num_frames=1 to train on images, or data.kind=clips"
        )


def objective_objections(experiment: Experiment, facts: FamilyFacts) -> Iterable[Objection]:
    if facts.is_flow_matching:
        return
    asked, default = experiment.objective, ObjectiveChoice()
    for key in ("timestep_density", "logit_mean", "logit_std", "mode_scale", "shift", "weighting"):
        if getattr(asked, key) != getattr(default, key):
            yield warning(f"objective.{key} has no effect: {facts.name} models are not trained with flow matching")


def distilled_objections(experiment: Experiment, *, distilled: bool | None) -> Iterable[Objection]:
    method = experiment.method
    if not distilled or (isinstance(method, Adapter) and method.training_adapter is not None):
        return
    if method.kind == "full" and "distilled-base" not in experiment.accept:
        yield refused(
            "method.kind: full fine-tuning of a distilled base tends to blur or collapse. Nearest: method.kind=lora, "
            "or an undistilled base (flux.1-dev for flux.1-schnell); to do it all the same: accept=[distilled-base]"
        )
    else:
        yield warning(
            "the base is distilled to few sampling steps: fine-tuning it with the plain objective tends to undo that. "
            "Look at samples early, train on the undistilled base (flux.1-dev for flux.1-schnell), or train beside an "
            "adapter that undoes the distillation: method.training_adapter=FOLDER or OWNER/REPO"
        )
