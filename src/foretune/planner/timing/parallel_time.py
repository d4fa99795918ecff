"""How long a step of several devices takes: the step of one of them, and what it waits for the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from foretune.core.values.step_trace import NEVER, OUTSIDE, StepTrace, Work
from foretune.core.vocabulary import WEIGHTS, MemoryPart, StepPhase
from foretune.planner.block_events import Sizes
from foretune.planner.sharding import num_shards
from foretune.planner.timing.communication import Communication, Links, Unit, UnitLayout, bucketed, sharded_pass
from foretune.planner.timing.constants import TimeConstants, shipped_constants
from foretune.planner.timing.interconnect import Group, Interconnect, group_of
from foretune.planner.timing.speed import DeviceSpeed
from foretune.planner.timing.step_time import (
    PlannedStep,
    StepParts,
    StepSeconds,
    TimedStep,
    compute_seconds,
    parts_of,
    planned_step,
)
from foretune.planner.timing.work_times import PASS, UPDATE, LayoutFacts, Part, Times, WorkTimes
from foretune.planner.traces import Traces, mixed_step

CONTENTION_SHARE = 0.1
"""By how much computation slows down while something is sent beside it: NCCL's kernels take multiprocessors and memory
bandwidth. General knowledge, chosen before any row was compared; not measured here.
"""
_USUAL_FORWARD_SHARE = 1 / 3
_FULL_WIDENING = 2
"""fp32 shards of weights that are gathered in bf16."""


@dataclass(frozen=True, kw_only=True)
class ParallelSeconds:
    """One optimizer step of each of several devices."""

    num_devices: int
    alone: StepSeconds
    """The same step as if nothing had to be sent, and the update of this device's part."""
    communication: Communication
    contention_s: float
    """What computation loses while something is sent."""
    samples: int
    """Of a step, over all devices."""

    @property
    def step_s(self) -> float:
        return self.alone.step_s + self.communication.exposed_s + self.contention_s

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.step_s

    def shares(self) -> dict[str, float]:
        """What the step waits for, as shares of it that add up to one."""
        waits_s = self.communication.exposed_s + self.contention_s
        rest = 1 - waits_s / self.step_s
        return {
            **{name: share * rest for name, share in self.alone.shares().items()},
            "communication": waits_s / self.step_s,
        }


Exchange = Callable[[UnitLayout, Links, int], Communication]
"""What is sent in a step of so many passes."""


def links_of(num_devices: int, shards: int, speed: DeviceSpeed, interconnect: Interconnect) -> Links:
    """Returns groups of neighbours that share the weights, and the copies of the model over all domains."""
    assert num_devices % shards == 0, "a plan refuses groups of unlike size"
    sharing, copies = group_of(shards, interconnect), num_devices // shards
    copies_inside = max(1, min(copies, interconnect.domain_devices // shards))
    domains = -(-copies // copies_inside)
    return Links(
        shards=sharing,
        replicas=Group(-(-copies // domains), domains),
        speed=speed,
        interconnect=interconnect,
    )


def engine_exchange(step: TimedStep) -> Exchange:
    """Returns how the engine of an experiment communicates."""

    def ddp(layout: UnitLayout, links: Links, num_passes: int) -> Communication:  # noqa: ARG001
        return bucketed(layout, links)

    def fsdp(layout: UnitLayout, links: Links, num_passes: int) -> Communication:
        return Communication().plus(sharded_pass(layout, links), num_passes)

    return ddp if step.experiment.parallel.sharding == "none" else fsdp


def parallel_step_seconds(
    step: TimedStep,
    traces: Traces,
    speed: DeviceSpeed,
    work_times: WorkTimes,
    interconnect: Interconnect,
    constants: TimeConstants | None = None,
) -> ParallelSeconds:
    """Returns the time of one optimizer step of an experiment on its devices.

    One device sends nothing. Raises `NotKnown` if something of the step is not known.
    """
    mixed = mixed_step(traces, step.experiment, step.size, step.geometry, step.numerics, habits=step.habits)
    return planned_parallel_seconds(planned_step(step, traces, mixed), speed, work_times, interconnect, constants)


def planned_parallel_seconds(
    planned: PlannedStep,
    speed: DeviceSpeed,
    work_times: WorkTimes,
    interconnect: Interconnect,
    constants: TimeConstants | None = None,
) -> ParallelSeconds:
    """Returns the time of a step whose traces were found before."""
    experiment, parallel = planned.step.experiment, planned.step.experiment.parallel
    if parallel.devices == 1:
        alone = parts_of(planned, speed, work_times).seconds(constants)
        samples = planned.step.size.batch_size * experiment.train.gradient_accumulation
        return ParallelSeconds(
            num_devices=1, alone=alone, communication=Communication(), contention_s=0.0, samples=samples
        )
    shards = num_shards(parallel)
    widening = _FULL_WIDENING if experiment.gathers_in_bf16 else 1
    return _exchanged_seconds(
        planned,
        links_of(parallel.devices, shards, speed, interconnect),
        work_times,
        engine_exchange(planned.step),
        constants,
        update_share=widening / shards,
        gradient_widening=widening,
    )


def exchanged_step_seconds(
    step: TimedStep,
    traces: Traces,
    links: Links,
    work_times: WorkTimes,
    exchange: Exchange,
    constants: TimeConstants | None = None,
    *,
    update_share: float = 1.0,
    gradient_widening: float = 1.0,
) -> ParallelSeconds:
    """Returns the time of a step of devices that communicate in a given way.

    `update_share`: what a device does of the update in the trace. `gradient_widening`: how many times the bytes of the
    trace gradients have when they are sent.
    """
    mixed = mixed_step(traces, step.experiment, step.size, step.geometry, step.numerics, habits=step.habits)
    return _exchanged_seconds(
        planned_step(step, traces, mixed),
        links,
        work_times,
        exchange,
        constants,
        update_share=update_share,
        gradient_widening=gradient_widening,
    )


def _exchanged_seconds(
    planned: PlannedStep,
    links: Links,
    work_times: WorkTimes,
    exchange: Exchange,
    constants: TimeConstants | None,
    *,
    update_share: float,
    gradient_widening: float,
) -> ParallelSeconds:
    step, constants = planned.step, constants or shipped_constants()
    parts = parts_of(planned, links.speed, work_times)
    own = _with_update(parts, update_share)
    alone = own.seconds(constants)
    # The host slows the blocks down, which leaves more time to send beside them.
    stretch = (alone.step_s - alone.host_work_s) / (_busy_s(own.total, constants) or 1.0)
    num_passes = step.experiment.train.gradient_accumulation
    trace = next(one.trace for one in reversed(planned.traces) if one.how_often)
    facts = _facts(trace, step.size.in_trace(step.geometry), work_times)
    seconds_of = {part: _busy_s(times, constants) for part, times in parts.by_part.items()}
    layout = _layout(trace, facts, seconds_of, gradient_widening=gradient_widening, stretch=stretch / num_passes)
    sent = exchange(layout, links, num_passes)
    return ParallelSeconds(
        num_devices=links.shards.size * links.replicas.size,
        alone=alone,
        communication=sent,
        contention_s=CONTENTION_SHARE * sent.hidden_s,
        samples=step.size.batch_size * num_passes * links.shards.size * links.replicas.size,
    )


def _busy_s(times: Times, constants: TimeConstants) -> float:
    """Returns the time of the device, without what it waits for."""
    return compute_seconds(times, constants) + constants.device * times.bandwidth_s


def _with_update(parts: StepParts, share: float) -> StepParts:
    """Returns the step in which a device updates its part of the weights; the host issues as many operators."""
    total = parts.total
    for (part, _), times in parts.by_part.items():
        if part == UPDATE:
            of_device = times._replace(num_operators=0, num_recomputing=0, num_8bit_products=0, host_work_s=0)
            total = total.plus(of_device, share - 1)
    return replace(parts, total=total)


def _layout(
    trace: StepTrace,
    facts: LayoutFacts,
    seconds_of: Mapping[Part, float],
    *,
    gradient_widening: float,
    stretch: float,
) -> UnitLayout:
    """Returns the blocks with their bytes and the time of one pass.

    Traces of models whose blocks all differ have their work outside the blocks; it is spread evenly over them.
    """
    num_blocks = sum(kind.count for kind in trace.kinds)
    has_work = any(busy_s for (part, kind), busy_s in seconds_of.items() if part == PASS and kind != OUTSIDE)
    share = 0.0 if has_work or not num_blocks else 1 / num_blocks

    def seconds(kind: int, count: float) -> tuple[float, float]:
        whole_s = stretch * seconds_of.get((PASS, kind), 0.0) * count
        forward_s = facts.forward_shares.get(kind, _USUAL_FORWARD_SHARE) * whole_s
        return forward_s, whole_s - forward_s

    def unit(kind: int, count: int, *times: tuple[float, float]) -> Unit:
        weights, gradients = facts.weight_bytes[kind]
        return Unit(
            count=count,
            weight_bytes=weights,
            gradient_bytes=gradients * gradient_widening,
            forward_s=sum(forward for forward, _ in times),
            backward_s=sum(backward for _, backward in times),
        )

    spread = seconds(OUTSIDE, share)
    blocks = tuple(
        unit(number, kind.count, seconds(number, 1 / kind.count), spread) for number, kind in enumerate(trace.kinds)
    )
    return UnitLayout(blocks=blocks, outside=unit(OUTSIDE, 1, seconds(OUTSIDE, 0.0 if share else 1.0)))


def _facts(trace: StepTrace, sizes: Sizes, work_times: WorkTimes) -> LayoutFacts:
    key = (id(trace), sizes)
    if key not in work_times.layouts:
        weights = {kind: _weight_bytes(trace, kind, sizes) for kind in (OUTSIDE, *range(len(trace.kinds)))}
        # The value holds the trace whose id is in the key.
        work_times.layouts[key] = (trace, LayoutFacts(weights, _forward_shares(trace.work, sizes)))
    return work_times.layouts[key][1]


def _forward_shares(work: tuple[Work, ...], sizes: Sizes) -> dict[int, float]:
    """Returns how much of a pass's operations the forward pass has, by kind of block."""
    flops: dict[tuple[int, bool], float] = {}
    for one in work:
        if one.phase in (StepPhase.FORWARD, StepPhase.BACKWARD):
            key = (one.kind, one.phase == StepPhase.FORWARD)
            flops[key] = flops.get(key, 0.0) + one.flops.at(sizes)
    kinds = {kind for kind, _ in flops}
    totals = {kind: flops.get((kind, True), 0.0) + flops.get((kind, False), 0.0) for kind in kinds}
    return {kind: flops.get((kind, True), 0.0) / total for kind, total in totals.items() if total}


def _weight_bytes(trace: StepTrace, kind: int, sizes: Sizes) -> tuple[float, float]:
    """Returns the bytes of all weights of a block and of those that have gradients, in the dtype of the weights."""
    found = trace.outside if kind == OUTSIDE else trace.kinds[kind].of_block(0, trace.kinds[kind].count)
    weights = gradients = 0.0
    for storage in found:
        category = trace.categories[storage.category]
        if category in WEIGHTS and storage.released.phase == NEVER:
            num_bytes = trace.growths[storage.growth].at(sizes)
            weights += num_bytes
            gradients += num_bytes if category == MemoryPart.TRAINED_WEIGHTS else 0.0
    return weights, gradients
