"""Where traces come from: the package, or, where torch is installed, the step itself."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from foretune.choices.experiment import Experiment
from foretune.choices.forward_form import ForwardForm
from foretune.choices.step_form import Numerics, StepForm
from foretune.core.errors import UserError
from foretune.core.values.step_trace import StepTrace
from foretune.plan.expansion import Event, Variant, expand_variant
from foretune.plan.sizing import StepSize
from foretune.trace.shipped import Geometry, read_trace

LiveTracer = Callable[[StepForm, StepSize], StepTrace]
"""Records a step of a form on fake tensors; the trace need only hold for steps of this size if it says so."""

_WEIGHT_BYTES = {"fp32": 4, "bf16": 2}


class NotTraced(UserError):
    """A step that the package has no trace of, where none can be made."""


@dataclass
class Traces:
    """Finds traces, and remembers what it found."""

    live: LiveTracer | None = None
    always_live: bool = False
    """Record the step even where the package has a trace of it."""
    used: dict[str, str] = field(default_factory=dict)
    """What the traces that were asked for were made from, by name."""
    quick_peaks: dict[Hashable, float] = field(default_factory=dict)
    """Near answers that were found already; other devices ask the same."""
    _found: dict[str, StepTrace] = field(default_factory=dict)

    def step(self, form: StepForm, size: StepSize) -> StepTrace:
        slug = form.slug()
        # What operators of a CPU use inside does not grow evenly with the sizes: such traces are for one size.
        key = slug if form.numerics == "cuda" else f"{slug} {size}"
        if key not in self._found:
            trace = None if self.always_live and self.live is not None else read_trace(slug)
            if trace is None:
                if self.live is None:
                    raise NotTraced(
                        f"The package has no trace of this step ({slug}), and torch, which could record one, is not "
                        "installed. Type: pip install 'foretune[train]'"
                    )
                trace = self.live(form, size)
            self._found[key] = trace
            self.used[slug] = trace.made_from
        return self._found[key]

    def forward(self, form: ForwardForm) -> StepTrace | None:
        slug = form.slug()
        if slug not in self._found:
            trace = read_trace(slug)
            if trace is None:
                return None
            self._found[slug] = trace
            self.used[slug] = trace.made_from
        return self._found[slug]


def step_events(
    traces: Traces, experiment: Experiment, size: StepSize, geometry: Geometry, numerics: Numerics = "cuda"
) -> list[Event]:
    """All that one training step of this experiment allocates, in order."""
    share = experiment.levers.gradient_checkpointing
    forms = {
        is_checkpointed: StepForm.of(experiment, is_checkpointed=is_checkpointed, numerics=numerics)
        for is_checkpointed in (False, True)
    }
    # All or none of the blocks: one trace says it all.
    kept = traces.step(forms[share >= 1], size)
    checkpointed = traces.step(forms[share > 0], size)
    return expand_variant(kept, checkpointed, size.in_trace(geometry), variant_of(experiment))


def variant_of(experiment: Experiment) -> Variant:
    """What the step has beside what traces are recorded with."""
    return Variant(
        share=experiment.levers.gradient_checkpointing,
        accumulates=experiment.train.gradient_accumulation > 1,
        averages=experiment.train.ema is not None,
        bytes_per_trained_weight=_WEIGHT_BYTES[experiment.train.weights],
    )


def flops_per_sample(
    traces: Traces, experiment: Experiment, size: StepSize, geometry: Geometry, numerics: Numerics = "cuda"
) -> float:
    """What one sample costs to compute, recomputation included."""
    share, sizes = experiment.levers.gradient_checkpointing, size.in_trace(geometry)
    ends = {}
    for is_checkpointed in {share > 0, share >= 1}:
        trace = traces.step(StepForm.of(experiment, is_checkpointed=is_checkpointed, numerics=numerics), size)
        counts = [kind.count for kind in trace.kinds]
        ends[is_checkpointed] = sum(
            work.flops.at(sizes) * (counts[work.kind] if work.kind >= 0 else 1) for work in trace.work
        )
    total = ends[True] if share >= 1 else ends[False] if share <= 0 else (1 - share) * ends[False] + share * ends[True]
    return total / sizes[0]
