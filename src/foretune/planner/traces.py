"""Provides traces: from the package or, if torch is installed, by recording the step."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace

from foretune.choices.checkpointing import chosen_units, units, without_idle_choices
from foretune.choices.experiment import Experiment
from foretune.choices.forward_form import ForwardForm
from foretune.choices.step_form import NO_HABITS, Numerics, StepForm, TrainerHabits
from foretune.core.errors import UserError
from foretune.core.values.step_trace import OUTSIDE, StepTrace, Work
from foretune.planner.block_events import Event, Variant
from foretune.planner.composing.forms import composed_trace, composition_of, is_covered, what_is_missing
from foretune.planner.expansion import Expansions, expand_variant
from foretune.planner.sharding import num_shards
from foretune.planner.sizing import StepSize
from foretune.planner.streams import device_events
from foretune.planner.swapping import swapped_units
from foretune.planner.timing.work_times import WorkTimes
from foretune.planner.verdict import Replays
from foretune.trace.shipped import Geometry, read_trace

LiveTracer = Callable[[StepForm, StepSize], StepTrace]
"""Records a step of a form on fake tensors. The trace need only be valid for captions of this length and, with CPU
numerics, for this size.
"""

_WEIGHT_BYTES = {"fp32": 4, "bf16": 2}


class NotTraced(UserError):
    """Raised if the package has no trace of a step and none can be recorded."""


@dataclass
class Traces:
    """Finds and caches traces."""

    live: LiveTracer | None = None
    always_live: bool = False
    """Whether to record the step even if the package has a trace of it."""
    used: dict[str, str] = field(default_factory=dict)
    """What the requested traces were made from, by name."""
    quick_peaks: dict[Hashable, float] = field(default_factory=dict)
    """Cached quick estimates; other devices need the same."""
    expansions: Expansions = field(default_factory=Expansions)
    replays: Replays = field(default_factory=Replays)
    """Cached replays: many devices and settings need the same."""
    work_times: WorkTimes = field(default_factory=WorkTimes)
    """Cached times: many settings need the same."""
    _found: dict[str, StepTrace] = field(default_factory=dict)
    _composed: set[str] = field(default_factory=set)

    def nearest(self, form: StepForm) -> StepForm:
        """Returns the form whose trace is used: steps in fp16 are shipped as steps in bf16, which are nearly alike."""
        alike = replace(form, precision="bf16")
        is_recorded = self.live is not None and (self.always_live or not is_covered(alike))
        if form.precision != "fp16" or is_recorded or is_covered(form):
            return form
        return alike

    def step(self, form: StepForm, size: StepSize) -> StepTrace:
        form = self.nearest(form)
        slug = form.slug()
        if slug not in self._found and not (self.always_live and self.live is not None):
            trace = read_trace(slug)
            composition = composition_of(form) if trace is None else None
            if composition is not None:
                trace = composed_trace(composition)
                self._composed.add(slug)
            if trace is not None:
                self._keep(slug, slug, trace)
        if slug in self._found:
            return self._found[slug]
        if self.live is None:
            raise NotTraced(
                f"The package has no trace of this step ({slug}): {what_is_missing(form)}. It can be recorded where "
                "torch is installed. Run: pip install 'foretune[train]'"
            )
        key = self._key(form, size)
        if key not in self._found:
            self._keep(key, slug, self.live(form, size))
        return self._found[key]

    def is_composed(self, form: StepForm) -> bool:
        """Whether the trace of a form, which was asked for, is composed of others."""
        return self.nearest(form).slug() in self._composed

    def has(self, form: StepForm, size: StepSize) -> bool:
        """Whether a trace is available, recorded or composed. Reads and records nothing."""
        form = self.nearest(form)
        return form.slug() in self._found or self._key(form, size) in self._found or is_covered(form)

    @staticmethod
    def _key(form: StepForm, size: StepSize) -> str:
        # Workspaces of CPU operators do not grow linearly with the sizes, so such traces are for one size.
        return f"{form.slug()} {size.num_text_tokens if form.numerics == 'cuda' else size}"

    def _keep(self, key: str, slug: str, trace: StepTrace) -> None:
        self._found[key] = trace
        self.used[slug] = trace.made_from

    def forward(self, form: ForwardForm) -> StepTrace | None:
        slug = form.slug()
        if slug not in self._found:
            trace = read_trace(slug)
            if trace is None:
                return None
            self._keep(slug, slug, trace)
        return self._found[slug]


@dataclass(frozen=True)
class Mixed:
    """A step composed of traces: some of its units of blocks recomputed, the others not."""

    kept: StepTrace
    checkpointed: StepTrace
    chosen: frozenset[int]
    """Indices of the recomputed units."""


def mixed_step(
    traces: Traces,
    experiment: Experiment,
    size: StepSize,
    geometry: Geometry,
    numerics: Numerics = "cuda",
    *,
    habits: TrainerHabits = NO_HABITS,
) -> Mixed:
    """Composes a step; if all or none of the units are recomputed, one trace is enough."""
    chosen = _chosen(experiment, geometry)
    forms = forms_of(experiment, geometry, numerics, habits=habits)
    kept, checkpointed = (traces.step(form, size) for form in forms)
    return Mixed(kept, checkpointed, chosen)


def is_at_hand(
    traces: Traces,
    experiment: Experiment,
    size: StepSize,
    geometry: Geometry,
    numerics: Numerics = "cuda",
    *,
    habits: TrainerHabits = NO_HABITS,
) -> bool:
    """Whether the step can be composed from available traces."""
    return all(traces.has(form, size) for form in forms_of(experiment, geometry, numerics, habits=habits))


def forms_of(
    experiment: Experiment, geometry: Geometry, numerics: Numerics, *, habits: TrainerHabits = NO_HABITS
) -> tuple[StepForm, StepForm]:
    """Returns the forms of blocks without and with recomputation; the same form if all are alike."""
    experiment = _as_traced(experiment)
    num_chosen = len(_chosen(experiment, geometry))
    num_units = len(units(geometry.stacks, without_idle_choices(experiment.levers)))
    kept, checkpointed = (
        StepForm.of(experiment, is_checkpointed=is_checkpointed, numerics=numerics, habits=habits)
        for is_checkpointed in (num_chosen == num_units, num_chosen > 0)
    )
    return kept, checkpointed


def _as_traced(experiment: Experiment) -> Experiment:
    """The experiment of one device whose step is that of each of several: theirs has whole weights in bf16 only."""
    if not experiment.gathers_in_bf16:
        return experiment
    return experiment.model_copy(update={"train": experiment.train.model_copy(update={"weight_dtype": "bf16"})})


def _chosen(experiment: Experiment, geometry: Geometry) -> frozenset[int]:
    return frozenset(chosen_units(geometry.stacks, without_idle_choices(experiment.levers)))


def step_events(
    traces: Traces,
    experiment: Experiment,
    size: StepSize,
    geometry: Geometry,
    numerics: Numerics = "cuda",
    *,
    habits: TrainerHabits = NO_HABITS,
) -> list[Event]:
    """Returns all allocations of one training step of this experiment, in order.

    `habits`: as another trainer with these would run it.
    """
    mixed = mixed_step(traces, experiment, size, geometry, numerics, habits=habits)
    variant = variant_of(experiment, geometry, habits)
    return device_events(expand_variant(mixed.kept, mixed.checkpointed, size.in_trace(geometry), variant))


def variant_of(experiment: Experiment, geometry: Geometry, habits: TrainerHabits = NO_HABITS) -> Variant:
    """Returns the settings of the step that traces are not recorded with."""
    levers, parallel = without_idle_choices(experiment.levers), experiment.parallel
    accumulates = experiment.train.gradient_accumulation > 1
    is_ddp = parallel.devices > 1 and parallel.sharding == "none"
    return Variant(
        chosen=_chosen(experiment, geometry),
        # DDP's gradients are parts of its buckets, which stay. Passes that are not sent add up beside them.
        accumulates=accumulates or is_ddp or habits.keeps_gradients,
        has_buckets=accumulates and is_ddp,
        averages=experiment.train.ema is not None,
        averages_on_host=levers.ema_offload,
        bytes_per_trained_weight=_WEIGHT_BYTES[_as_traced(experiment).train.weight_dtype],
        swapped=swapped_units(units(geometry.stacks, levers), levers.block_swap, levers.block_swap_prefetch),
        num_shards=num_shards(parallel),
        shard_widening=_WEIGHT_BYTES["fp32"] // _WEIGHT_BYTES["bf16"] if experiment.gathers_in_bf16 else 1,
    )


def flops_per_sample(
    traces: Traces, experiment: Experiment, size: StepSize, geometry: Geometry, numerics: Numerics = "cuda"
) -> float:
    """Returns the FLOPs of one sample, including recomputation."""
    sizes = size.in_trace(geometry)
    mixed = mixed_step(traces, experiment, size, geometry, numerics)
    return sum(work.flops.at(sizes) * count for work, count in work_of(mixed)) / sizes[0]


def work_of(mixed: Mixed) -> Iterator[tuple[Work, float]]:
    """Yields the work of a step, and how often each part is done."""
    counts = [kind.count for kind in mixed.kept.kinds]
    starts = [sum(counts[:index]) for index in range(len(counts))]
    again = [
        sum(start <= number < start + count for number in mixed.chosen)
        for start, count in zip(starts, counts, strict=True)
    ]
    # Work that is done once includes that of blocks that are not repeated.
    share = len(mixed.chosen) / max(1, sum(counts))
    for trace, is_again in ((mixed.checkpointed, True), (mixed.kept, False)):
        for work in trace.work:
            if work.kind == OUTSIDE:
                times = share if is_again else 1 - share
            else:
                times = again[work.kind] if is_again else counts[work.kind] - again[work.kind]
            if times:
                yield work, times
