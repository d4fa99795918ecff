"""Makes a Plan from an experiment: its memory in every phase, and whether it fits a device."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from foretune.catalog import ModelComponent
from foretune.catalog.devices import Device, cards_of
from foretune.choices.experiment import Experiment
from foretune.choices.objections.hardware import hardware_objections
from foretune.choices.step_form import NO_HABITS, Numerics, TrainerHabits
from foretune.core.units import share_text
from foretune.core.values.plan import Plan, ValidationMemory
from foretune.core.values.plan_time import JobCost, StepTime
from foretune.core.vocabulary import RunPhase
from foretune.planner.around import RunToPlan
from foretune.planner.assumptions import plan_assumptions
from foretune.planner.block_events import Event
from foretune.planner.commands import CommandPhases, plan_commands
from foretune.planner.expansion import expand_step, expand_variant
from foretune.planner.host_memory import HostBudget, host_memory_of
from foretune.planner.overheads import Overhead, in_this_process, overhead_for, usable_bytes
from foretune.planner.phase_memory import Phase
from foretune.planner.phases import plan_phases, replay_streams, validation_stream, worst_phase
from foretune.planner.sharding import gathered_bytes
from foretune.planner.sizing import StepSize
from foretune.planner.streams import as_one, by_fate
from foretune.planner.swapping import most_on_device_bytes, moved_bytes
from foretune.planner.timing.interconnect import connection_words
from foretune.planner.timing.job import JobWork, beside_steps, job_cost, job_work
from foretune.planner.timing.mixed_cards import mixed_words, slowest_card, terms_on, with_average_power
from foretune.planner.timing.passes import live_encoders
from foretune.planner.timing.speed import NotKnown
from foretune.planner.timing.spot_job import with_spot
from foretune.planner.timing.step_time import PlannedStep, TimedStep, planned_step
from foretune.planner.timing.terms import PUBLISHED, Terms
from foretune.planner.traces import Traces, forms_of, mixed_step, variant_of
from foretune.planner.transfers import NOTHING_MOVED, Moved, moved_in_a_step, transfers_on
from foretune.planner.verdict import COMPILED_ERROR, PAGES_TO_HOST, TRACE_ERROR, Ends, ErrorShares, Judgement, judge
from foretune.trace.shipped import Geometry

_VERDICTS = ("fits", "tight", "does not fit")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The planned model: its catalogue row and its latent geometry."""

    row: ModelComponent
    geometry: Geometry


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a run needs, independent of the device."""

    experiment: Experiment
    subject: Subject
    size: StepSize
    run: RunToPlan
    traces: Traces
    trains_on_host: bool = False
    numerics: Numerics = "cuda"
    """The kind of device whose numerics the step was recorded with."""
    context_bytes: int | None = None
    """Measured memory of the process before the model is loaded; None uses the catalogue's figure."""
    habits: TrainerHabits = NO_HABITS
    """How another trainer runs the step, if the plan is for one."""
    moved: Moved = NOTHING_MOVED
    """Traffic between host and device per step."""

    @property
    def error_share(self) -> ErrorShares:
        """The relative part of the band."""
        return COMPILED_ERROR if self.experiment.levers.compile != "off" else TRACE_ERROR

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """All phases in order. Computed on demand: most trials only need `streams`."""
        return plan_phases(self.run)

    @cached_property
    def phases_that_must_fit(self) -> tuple[Phase, ...]:
        """The same without validation, which takes longest to plan and is skipped if it does not fit."""
        return plan_phases(self.run, validates=False)

    @cached_property
    def commands(self) -> tuple[CommandPhases, ...]:
        """What follows the training. Computed on demand."""
        return plan_commands(self.run, self.size, self.subject.geometry)

    @property
    def timed_step(self) -> TimedStep:
        return TimedStep(
            experiment=self.experiment,
            size=self.size,
            geometry=self.subject.geometry,
            moved=self.moved,
            numerics=self.numerics,
            habits=self.habits,
            is_cpu=self.trains_on_host,
            encoders=live_encoders(self.run),
        )

    @cached_property
    def planned_step(self) -> PlannedStep:
        """The step with its traces, on whatever device; raises `NotKnown`."""
        mixed = mixed_step(
            self.traces, self.experiment, self.size, self.subject.geometry, self.numerics, habits=self.habits
        )
        return planned_step(self.timed_step, self.traces, mixed)

    @cached_property
    def job(self) -> JobWork:
        """What the whole job does; raises `NotKnown`."""
        return job_work(self.run)

    @cached_property
    def streams(self) -> tuple[tuple[str, tuple[Event, ...]], ...]:
        """The allocations that must succeed, in stretches; the allocator's cache is emptied between them."""
        return replay_streams(self.run)

    @cached_property
    def validation_stream(self) -> tuple[Event, ...] | None:
        """The training including validation; None if there is none."""
        return validation_stream(self.run)

    def overhead_on(self, device: Device) -> Overhead:
        overhead = overhead_for(device)
        return overhead if self.context_bytes is None else in_this_process(overhead, self.context_bytes)

    others: dict[Hashable, "Footprint"] = field(default_factory=dict)
    """Footprints of the same model with other settings that were tried."""
    quick_errors: dict[Hashable, float] = field(default_factory=dict)
    """Error in bytes of the quick estimate of settings at the last exact look."""

    @property
    def worst(self) -> Phase:
        """The phase with the most tensor memory, without the allocator's overhead."""
        return worst_phase(self.phases)

    def worst_in(self, stretch: str) -> Phase:
        """Returns the peak phase of a stretch: the one of that name, or the largest that shares the allocator."""
        names = {RunPhase.VALIDATE, *(name for name, _ in self.streams)}
        if any(phase.name == stretch for phase in self.phases):
            return worst_phase([phase for phase in self.phases if phase.name == stretch])
        return worst_phase([phase for phase in self.phases if phase.name not in names])


def footprint(
    experiment: Experiment,
    subject: Subject,
    size: StepSize,
    traces: Traces,
    *,
    trains_on_host: bool = False,
    numerics: Numerics = "cuda",
    context_bytes: int | None = None,
    habits: TrainerHabits = NO_HABITS,
) -> Footprint:
    """Expands the traces at the experiment's sizes, phase by phase."""
    geometry, sizes = subject.geometry, size.in_trace(subject.geometry)
    mixed = mixed_step(traces, experiment, size, geometry, numerics, habits=habits)
    variant = variant_of(experiment, geometry, habits)
    step = expand_step(mixed.kept, mixed.checkpointed, sizes, variant, traces.expansions)
    moved = moved_in_a_step(mixed, experiment, sizes, step, variant.swapped)
    if trains_on_host:
        step = by_fate(as_one(expand_variant(mixed.kept, mixed.checkpointed, sizes, variant)))
    run = RunToPlan(
        experiment=experiment,
        denoiser=subject.row,
        step=step,
        sizes=sizes,
        extent=size.extent(geometry),
        forwards=traces.forward,
        most_swapped_bytes=most_on_device_bytes(
            moved_bytes(mixed.kept, sizes, variant.swapped), variant.swapped, experiment.levers.block_swap_prefetch
        ),
        gathered_bytes=gathered_bytes(mixed.kept, sizes) if variant.num_shards > 1 else 0,
        trains_on_host=trains_on_host,
    )
    return Footprint(
        experiment=experiment,
        subject=subject,
        size=size,
        run=run,
        traces=traces,
        trains_on_host=trains_on_host,
        numerics=numerics,
        context_bytes=context_bytes,
        habits=habits,
        moved=moved,
    )


def other_footprint(found: Footprint, experiment: Experiment, size: StepSize) -> Footprint:
    """Returns the footprint of the same model with other settings, cached across devices."""
    key = (experiment.whole_hash(), size)
    if key not in found.others:
        found.others[key] = footprint(
            experiment,
            found.subject,
            size,
            found.traces,
            trains_on_host=found.trains_on_host,
            numerics=found.numerics,
            context_bytes=found.context_bytes,
            habits=found.habits,
        )
    return found.others[key]


def judge_on(found: Footprint, device: Device, *, expandable_segments: bool = False) -> Judgement:
    """Judges the stretch with the highest memory; the allocator's cache is emptied between stretches."""
    return _judged(found, device, expandable_segments=expandable_segments)[1]


def _judged(found: Footprint, device: Device, *, expandable_segments: bool) -> tuple[str, Judgement]:
    """Returns the name of that stretch, and its judgement with the maxima allocated and reserved in any stretch."""
    overhead, usable = found.overhead_on(device), usable_bytes(device)
    judged = {
        name: judge(
            events,
            overhead,
            usable,
            expandable_segments=expandable_segments,
            error_share=found.error_share,
            replays=found.traces.replays,
        )
        for name, events in found.streams
    }
    hardest, worst = max(judged.items(), key=lambda pair: (_VERDICTS.index(pair[1].verdict), pair[1].process.likely))
    return hardest, replace(
        worst,
        allocated_bytes=max(one.allocated_bytes for one in judged.values()),
        reserved_bytes=max(one.reserved_bytes for one in judged.values()),
    )


def fits_on(found: Footprint, device: Device, *, expandable_segments: bool = False) -> bool:
    """Whether the verdict is `fits`; cheaper than the distance from fitting."""
    overhead, usable = found.overhead_on(device), usable_bytes(device)
    ends = Ends(overhead, found.error_share)
    return all(
        ends.high(held.reserved_bytes) <= usable
        for held in (
            found.traces.replays.free(events, overhead, expandable_segments=expandable_segments)
            for _, events in found.streams
        )
    )


def fits_stretch(found: Footprint, device: Device, stretch: str) -> bool:
    """Whether one stretch of a run (filling a cache, or the training) fits on its own."""
    events = dict(found.streams).get(stretch)
    if events is None:
        return True
    overhead = found.overhead_on(device)
    held = found.traces.replays.free(events, overhead, expandable_segments=False)
    return Ends(overhead, found.error_share).high(held.reserved_bytes) <= usable_bytes(device)


def validation_on(found: Footprint, device: Device, *, expandable_segments: bool = False) -> ValidationMemory | None:
    """Judges training including validation; None if the run does not validate."""
    if found.validation_stream is None:
        return None
    judged = judge(
        found.validation_stream,
        found.overhead_on(device),
        usable_bytes(device),
        expandable_segments=expandable_segments,
        error_share=found.error_share,
        replays=found.traces.replays,
    )
    return ValidationMemory(
        allocated_bytes=judged.allocated_bytes,
        reserved_bytes=judged.reserved_bytes,
        process_low_bytes=judged.process.low,
        process_bytes=judged.process.likely,
        process_high_bytes=judged.process.high,
        verdict=judged.verdict,
    )


class PlanForecast(NamedTuple):
    """Time and cost, and why one is missing."""

    time: StepTime | None = None
    no_time: str | None = None
    cost: JobCost | None = None
    no_cost: str | None = None


def forecast_on(found: Footprint, device: Device, terms: Terms = PUBLISHED) -> PlanForecast:
    """Returns the time of a step on a device, and what the whole job costs."""
    try:
        slowest = slowest_card(found.timed_step, found.traces, device, terms)
    except NotKnown as missing:
        return PlanForecast(no_time=str(missing))
    time, card = slowest.time, with_average_power(slowest.card, device)
    try:
        speed = terms.speeds(slowest.card)
        beside = beside_steps(found.job, found.planned_step, speed, found.traces.work_times)
        cost = job_cost(found.job, time, card, terms.price_of(device), beside)
        return PlanForecast(time=time, cost=with_spot(cost, found.job, time, device, terms, beside))
    except NotKnown as missing:
        return PlanForecast(time=time, no_cost=str(missing))


def plan_on(
    found: Footprint,
    device: Device,
    *,
    expandable_segments: bool = False,
    host: HostBudget | None = None,
    terms: Terms = PUBLISHED,
) -> Plan:
    """Returns the plan for one device, without advice. `host` is the available host memory, if known."""
    forecast = forecast_on(found, device, terms)
    hardest, judged = _judged(found, device, expandable_segments=expandable_segments)
    worst, transfers = found.worst_in(hardest), transfers_on(found.moved, device)
    return Plan(
        experiment=found.experiment.whole_hash(),
        model=found.subject.row.name,
        device=device.name,
        world_size=found.experiment.parallel.devices,
        sizes=found.size.as_dict(),
        phases=tuple(phase.memory for phase in found.phases if phase.occurs),
        worst_phase=worst.name,
        allocated_bytes=judged.allocated_bytes,
        reserved_bytes=judged.reserved_bytes,
        process_low_bytes=judged.process.low,
        process_bytes=judged.process.likely,
        process_high_bytes=judged.process.high,
        usable_bytes=judged.usable_bytes,
        error_band=found.error_share.high,
        verdict=judged.verdict,
        pages_to_host=device.pages_to_host,
        validation=validation_on(found, device, expandable_segments=expandable_segments),
        largest=worst.largest,
        time=forecast.time,
        no_time=forecast.no_time,
        cost=forecast.cost,
        no_cost=forecast.no_cost,
        connection=_connection(found, device, terms),
        transfers=transfers,
        host=host_memory_of(found.experiment, found.phases, device, host),
        warnings=(
            *(w.text for card in cards_of(device) for w in hardware_objections(found.experiment, card)),
            *((PAGES_TO_HOST,) if device.pages_to_host and judged.verdict != "fits" else ()),
        ),
        assumptions=plan_assumptions(
            found.experiment, found.size, device, transfers, expandable_segments=expandable_segments
        ),
        notes=(*_notes(found.phases), *_of_the_device(found, device)),
        traces=tuple(f"{name} {stamp}" for name, stamp in sorted(found.traces.used.items())),
    )


def _connection(found: Footprint, device: Device, terms: Terms) -> tuple[str, ...]:
    num_devices = found.experiment.parallel.devices
    if num_devices == 1:
        return ()
    try:
        links = terms_on(device, terms).links
        mixed = mixed_words(found.timed_step, found.traces, device, terms)
        return (*connection_words(device, num_devices, links), *mixed)
    except NotKnown:
        return ()  # the plan has no time either, and says why


def _notes(phases: Sequence[Phase]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for phase in phases if phase.occurs for note in phase.notes))


def _of_the_device(found: Footprint, device: Device) -> Iterator[str]:
    """Yields notes if the step was recorded with other numerics than the device's."""
    experiment = found.experiment
    if experiment.parallel.devices > 1:
        if device.kind != "cpu":
            yield "the buffers of NCCL or RCCL, often some hundred MiB on each device"
        others = "process" if experiment.parallel.devices == 2 else f"{experiment.parallel.devices - 1} processes"  # noqa: PLR2004
        yield f"the host memory of the other {others}; some may be on this machine"
    if experiment.levers.compile != "off":
        width = share_text(COMPILED_ERROR.high)
        yield f"the effect of torch.compile: the high end of the band is raised by {width} instead"
    if experiment.optimizer.spec.is_paged:
        yield "paging of optimizer states to the host: all of them are counted on the device"
    if experiment.train.precision == "fp16":
        forms = forms_of(experiment, found.subject.geometry, found.numerics, habits=found.habits)
        if any(found.traces.nearest(form) != form for form in forms):  # the nearest one is in bf16
            yield "the extra activations of fp16 compared with bf16: 2 to 3 % of a FLUX step without checkpointing"
        yield "that samples are decoded in fp32, in which the autoencoder needs up to twice as much"
    elif device.kind == "cpu" and found.numerics != "cpu":
        yield "activations that differ on a CPU; with torch installed, `foretune plan --live` records them"
    elif device.kind == "mps":
        yield "Metal's allocator; the step is planned as on CUDA"
        if found.run.step.on_host:
            yield "that offloaded tensors stay in the same memory"
