"""What one training step computes, counted on the traced step: products of matrices, convolutions and attention."""

from dataclasses import dataclass

from foretune.catalog import ModelComponent
from foretune.choices.experiment import Experiment
from foretune.choices.model import ModelReference
from foretune.choices.step_form import StepForm
from foretune.choices.training import Levers
from foretune.config.reading import Asked
from foretune.core.values.step_trace import StepTrace
from foretune.models.family import Family
from foretune.planner.asking import find_subject
from foretune.planner.sizing import StepSize, size_of, with_default_targets
from foretune.planner.traces import LiveTracer, Traces, flops_per_sample
from foretune.trace.live import described, family_of
from foretune.trace.making import make_point_trace
from foretune.trace.shipped import Geometry
from foretune.trace.tracing import StepSizes


@dataclass(frozen=True)
class StepFlops:
    """Floating-point operations of one optimizer step on one device; a multiplication and an addition are two."""

    model: float
    """What the model needs. What is recomputed to save memory counts once, so levers do not change it."""
    hardware: float
    """What is really computed: with checkpointing, more."""


@dataclass(frozen=True)
class _OneSize:
    """Records steps at the very sizes that are asked for, which takes one recording."""

    family: Family

    def tracer(self, model: ModelReference) -> LiveTracer:
        def trace(form: StepForm, size: StepSize) -> StepTrace:
            sizes = StepSizes(
                batch_size=size.batch_size,
                height_px=size.height_px,
                width_px=size.width_px,
                num_text_tokens=size.num_text_tokens,
                num_frames=size.num_frames,
            )
            return make_point_trace(form.experiment(), self.family, sizes, size.rank, form.numerics)

        return trace

    def described(self, model: ModelReference) -> tuple[ModelComponent, Geometry]:
        return described(self.family, model.asked)


def step_flops(asked: Asked) -> StepFlops:
    """Counted as an accelerator computes it, on every device: its attention is one operator whose work is known."""
    live = _OneSize(family_of(asked.model))
    subject = find_subject(asked.model, live)
    named = asked.experiment.model_copy(update={"model": subject.row.name})
    experiment = with_default_targets(named, subject.geometry)
    size, traces = size_of(experiment, subject.geometry), Traces(live.tracer(asked.model))
    samples = experiment.train.batch_size * experiment.train.gradient_accumulation

    def flops(one: Experiment) -> float:
        return flops_per_sample(traces, one, size, subject.geometry) * samples

    return StepFlops(model=flops(_computed_once(experiment)), hardware=flops(experiment))


def _computed_once(experiment: Experiment) -> Experiment:
    """Without the levers that compute something again."""
    again = ("gradient_checkpointing", "checkpoint_segment", "checkpoint_stride", "checkpoint_parts")
    own = {name: Levers.model_fields[name].get_default() for name in again}
    return experiment.model_copy(update={"levers": experiment.levers.model_copy(update=own)})
