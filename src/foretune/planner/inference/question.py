"""Inference as a user asks for it, and the model, sizes and traces that answer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from foretune.choices.experiment import Experiment
from foretune.choices.model import ModelReference
from foretune.choices.quantize import DenoiserNumbers
from foretune.choices.training import CompileMode, Precision
from foretune.core.errors import UserError
from foretune.core.values.inference_plan import Offload
from foretune.planner.around import RunToPlan
from foretune.planner.asking import LiveSource, PlanRequest, asked_of, find_subject
from foretune.planner.planning import Footprint, footprint
from foretune.planner.sizing import size_of
from foretune.planner.traces import Traces

NUMBERS: tuple[DenoiserNumbers, ...] = ("none", "int8", "float8", "float8-dynamic", "nf4", "int8-bnb")
"""Quantisations that leave something in a model that only samples."""
_FIELDS = {"batch": "batch_size"}
_FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, kw_only=True)
class InferenceQuestion:
    """What is sampled, and how."""

    model: str
    batch_size: int = 1
    precision: Precision = "bf16"
    quantize: DenoiserNumbers = "none"
    compile: CompileMode = "off"
    offload: Offload = "none"
    vae_tiling: bool = False
    adapter_rank: int | None = None
    size_px: int | str | None = None
    num_frames: int | None = None
    num_inference_steps: int = 28
    only_denoising: bool = False
    """The denoiser alone and without guidance, as `foretune bench --inference` measures denoising steps."""

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Returns the question with other settings, by parameter of `plan_inference`."""
        return replace(self, **{_FIELDS.get(key, key): value for key, value in settings.items()})

    def experiment_overrides(self) -> tuple[str, ...]:
        """Returns the training whose traces have the passes of this inference.

        The forward part of a full fine-tuning in bf16 has nothing that inference does not have. A quantised base and
        an adapter are those of a LoRA.
        """
        overrides = ["train.precision=bf16", "train.gradient_accumulation=1", f"train.batch_size={self.batch_size}"]
        overrides += ["levers.gradient_checkpointing=1", "data.held_out=0", f"quantize.denoiser={self.quantize}"]
        if self.adapter_rank is None and self.quantize == "none":
            overrides += ["method.kind=full", "train.weight_dtype=bf16", "accept=[distilled-base]"]
        else:
            overrides += ["method.kind=lora", f"method.rank={self.adapter_rank or 1}"]
        if self.size_px is not None:
            overrides.append(f"data.resolution={self.size_px}")
        if self.num_frames is not None:
            overrides.append(f"data.num_frames={self.num_frames}")
        return tuple(overrides)


@dataclass(frozen=True, kw_only=True)
class InferenceSubject:
    """A model at the sizes of a question."""

    question: InferenceQuestion
    reference: ModelReference
    """How the model was named."""
    found: Footprint
    """Of the training with the same passes, in bf16."""

    @cached_property
    def dense_experiment(self) -> Experiment:
        """The same training with a base that is not quantised: only such steps have the shapes of their products."""
        dense = replace(self.question, quantize="none")
        asked = asked_of(PlanRequest(target=dense.model, overrides=dense.experiment_overrides()))
        return asked.experiment.model_copy(update={"model": self.found.experiment.model})

    @cached_property
    def run(self) -> RunToPlan:
        """The same in the precision of inference."""
        return replace(self.found.run, experiment=self.experiment)

    @property
    def experiment(self) -> Experiment:
        experiment, question = self.found.experiment, self.question
        train = experiment.train.model_copy(update={"precision": question.precision})
        levers = experiment.levers.model_copy(
            update={"compile": question.compile, "vae_tiling": question.vae_tiling, "gradient_checkpointing": 0.0}
        )
        return experiment.model_copy(update={"train": train, "levers": levers})


def subject_of(question: InferenceQuestion, live: LiveSource | None, *, on_host: bool) -> InferenceSubject:
    """Finds the model and its traces. Raises a `UserError` for what it cannot do."""
    if question.model.endswith(_FILES):
        raise UserError(
            f"Inference is planned for a model, not for an experiment file such as {question.model}. "
            "Run: foretune plan flux.1-dev --inference --on rtx-4090"
        )
    asked = asked_of(PlanRequest(target=question.model, overrides=question.experiment_overrides()))
    subject = find_subject(asked.model, live)
    experiment = asked.experiment.model_copy(update={"model": subject.row.name})
    size = size_of(experiment, subject.geometry)
    if question.adapter_rank is None:
        size = replace(size, rank=0)
    traces = Traces(live.tracer(asked.model) if live is not None else None)
    found = footprint(experiment, subject, size, traces, trains_on_host=on_host)
    return InferenceSubject(question=question, reference=asked.model, found=found)
