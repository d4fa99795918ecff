"""What of an experiment decides which operators its step runs; the sizes it runs them at are left aside."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from foretune.choices.checkpointing import unit_width
from foretune.choices.earlier_keys import old_key
from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter, LowRank, Method, MethodKind
from foretune.choices.section import FORMS_STEP
from foretune.core.values.base import content_hash

Numerics = Literal["cuda", "cpu"]

_SECTIONS = ("method", "quantize", "optimizer", "levers")
"""Sections with fields that are marked `FORMS_STEP`."""
_PLAIN = frozenset({"quantize.denoiser", "optimizer.kind", "levers.attention"})
"""Choices whose value says by itself what it is."""


@dataclass(frozen=True, kw_only=True)
class TrainerHabits:
    """How other trainers run a step. No experiment can choose these: they are for forecasts of those trainers."""

    leaves_stay: bool = False
    """Offload of activations leaves saved tensors without a gradient on the device."""
    torchao_autograd: bool = False
    """int8, float8 and float8-dynamic layers are differentiated by torchao's own autograd, which stores dense copies of
    weights (int8, float8) or four copies of each input (float8-dynamic)."""
    keeps_gradients: bool = False
    """Gradients are filled with zeros instead of freed, so that they are there during the next pass."""

    def in_step_of(self, experiment: Experiment) -> "TrainerHabits":
        """Those that change which operators a step of this experiment runs."""
        return TrainerHabits(
            leaves_stay=self.leaves_stay and experiment.levers.activation_offload,
            torchao_autograd=self.torchao_autograd and experiment.quantize.denoiser in _DIFFERENTIATED_BY_TORCHAO,
        )


NO_HABITS = TrainerHabits()
_DIFFERENTIATED_BY_TORCHAO = ("int8", "float8", "float8-dynamic")


@dataclass(frozen=True, kw_only=True)
class StepForm:
    """Steps of equal form differ in how many bytes their storages have, and in which blocks are recomputed.

    Accumulated gradients and a moving average are added to a form when it is run, and a share of checkpointed blocks is
    made of the two forms in which all or none are. Clipping of gradients and loss scaling work in place.

    fp16 differs from bf16 in a few families, FLUX among them: their blocks clip what they return in fp16 alone, and
    autograd stores what was clipped.
    """

    model: str
    method: MethodKind
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    weights: Literal["fp32", "bf16"] = "fp32"
    compensation: Literal["none", "kahan", "stochastic"] = "none"
    targets: tuple[str, ...] | None = None
    has_dropout: bool = False
    is_checkpointed: bool = False
    others: tuple[tuple[str, Any], ...] = ()
    """Further choices that are not at their default, by their keys in an experiment, sorted."""
    numerics: Numerics = "cuda"
    habits: TrainerHabits = NO_HABITS

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        *,
        is_checkpointed: bool,
        numerics: Numerics = "cuda",
        habits: TrainerHabits = NO_HABITS,
    ) -> "StepForm":
        method, train = experiment.method, experiment.train
        return cls(
            model=experiment.model,
            method=method.kind,
            precision="fp32" if train.precision == "tf32" else train.precision,
            weights=train.weight_dtype,
            compensation=experiment.optimizer.compensation,
            targets=method.targets if isinstance(method, Adapter) else None,
            has_dropout=isinstance(method, Adapter) and method.dropout > 0,
            is_checkpointed=is_checkpointed,
            others=_others(experiment, numerics, is_checkpointed=is_checkpointed),
            numerics=numerics,
            habits=habits.in_step_of(experiment),
        )

    def slug(self) -> str:
        """A file name that says what it is."""
        words: list[str] = [self.method, self.precision, "checkpointed" if self.is_checkpointed else "kept"]
        if self.weights != "fp32":
            words.append(f"{self.weights}-weights")
        if self.compensation != "none":
            words.append(self.compensation)
        if self.has_dropout:
            words.append("dropout")
        if self.targets is not None:
            words.append(f"targets-{content_hash(list(self.targets))}")
        others = self.others
        if self.habits.torchao_autograd:
            # Once a key of experiments, and still a word in the names of files.
            others = tuple(sorted((*others, ("quantize.derivative", "torchao"))))
        words += [_word(key, value) for key, value in others]
        if self.habits.leaves_stay:
            words.append("leaves-stay")
        if self.numerics != "cuda":
            words.append(self.numerics)
        return f"{self.model}.{'.'.join(words)}"

    def experiment(self) -> Experiment:
        """An experiment of this form, for those who record it; its sizes are set by them. It has no habits."""
        asked: dict[str, dict[str, Any]] = {
            "method": {"kind": self.method},
            "train": {"steps": 1, "precision": self.precision, "weight_dtype": self.weights},
            "optimizer": {"compensation": self.compensation},
            "levers": {"gradient_checkpointing": 1.0 if self.is_checkpointed else 0.0},
        }
        if self.method != "full":
            asked["method"] |= {"targets": self.targets, "dropout": 0.1 if self.has_dropout else 0.0}
        for key, value in self.others:
            section, _, field = key.partition(".")
            asked.setdefault(section, {})[field] = value
        if "levers.fused_backward" in dict(self.others):
            asked["train"]["max_grad_norm"] = None
        return Experiment.model_validate({"model": self.model, "data": {"kind": "shapes"}, **asked})


def update_name(kind: str, compensation: str, weights: str, *, on_host: bool) -> str:
    """Of an optimizer on trained weights of a type, as its recipe is filed."""
    words = [kind, *([compensation] if compensation != "none" else []), weights, *(["on-host"] if on_host else [])]
    return ".".join(words)


def rank_is_a_size(method: Method) -> bool:
    """Whether a rank changes sizes alone. LoKr keeps its matrices whole from some rank on, by the size of a layer."""
    return isinstance(method, LowRank) and method.kind != "lokr"


def _others(experiment: Experiment, numerics: Numerics, *, is_checkpointed: bool) -> tuple[tuple[str, Any], ...]:
    found = []
    for section_name in _SECTIONS:
        section: BaseModel = getattr(experiment, section_name)
        for name, field in type(section).model_fields.items():
            key, value = f"{section_name}.{name}", getattr(section, name)
            if FORMS_STEP not in field.metadata or value == field.get_default():
                continue
            if _is_decisive(experiment, key, numerics, is_checkpointed=is_checkpointed):
                found.append((key, value))
    return tuple(sorted(found))


def _is_decisive(experiment: Experiment, key: str, numerics: Numerics, *, is_checkpointed: bool) -> bool:
    """Whether a choice decides anything beside the others."""
    levers = experiment.levers
    if key == "method.rank":
        return not rank_is_a_size(experiment.method)
    if key == "levers.attention":
        # Fused kernels of a GPU keep the same, whichever it is.
        return levers.attention == "math" or numerics == "cpu"
    is_idle = key.startswith("levers.checkpoint_") and levers.gradient_checkpointing <= 0
    if key == "levers.checkpoint_stride":
        # As a rule a stride only says which units are recomputed.
        return not is_idle and unit_width(levers) == levers.checkpoint_stride != levers.checkpoint_segment
    if key == "levers.checkpoint_parts":
        return is_checkpointed and not is_idle
    # Blocks that are kept are recorded in the units of those that are recomputed.
    return not is_idle


def _word(key: str, value: Any) -> str:
    if key in _PLAIN:
        return str(value)
    name = old_key(key).rpartition(".")[2].replace("_", "-")
    if value is True:
        return name
    return f"{name}-{content_hash(list(value)) if isinstance(value, tuple) else value}"
