"""How long a step of several devices takes: the step of one of them, and what it waits for the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from foretune.core.values.step_trace import OUTSIDE, StepTrace
from foretune.planner.sharding import num_shards
from foretune.planner.timing.communication import Communication, Links, Unit, UnitLayout, bucketed, sharded_pass
from foretune.planner.timing.constants import TimeConstants, shipped_constants
from foretune.planner.timing.interconnect import Group, Interconnect, group_of
from foretune.planner.timing.layout_facts import block_seconds, layout_facts
from foretune.planner.timing.speed import DeviceSpeed
from foretune.planner.timing.step_time import (
    PlannedStep,
    StepParts,
    StepSeconds,
    TimedStep,
    busy_seconds,
    parts_of,
    planned_step,
)
from foretune.planner.timing.work_times import UPDATE, LayoutFacts, Part, WorkTimes
from foretune.planner.traces import Traces, mixed_step

CONTENTION_SHARE = 0.1
"""By how much computation slows down while something is sent beside it: NCCL's kernels take multiprocessors and memory
bandwidth. General knowledge, chosen before any row was compared; not measured here.
"""
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
    stretch = (alone.step_s - alone.host_work_s) / (busy_seconds(own.total, constants) or 1.0)
    num_passes = step.experiment.train.gradient_accumulation
    trace = next(one.trace for one in reversed(planned.traces) if one.how_often)
    facts = layout_facts(trace, step.size.in_trace(step.geometry), work_times)
    seconds_of = {part: busy_seconds(times, constants) for part, times in parts.by_part.items()}
    layout = _layout(trace, facts, seconds_of, num_passes, gradient_widening=gradient_widening, stretch=stretch)
    sent = exchange(layout, links, num_passes)
    return ParallelSeconds(
        num_devices=links.shards.size * links.replicas.size,
        alone=alone,
        communication=sent,
        contention_s=CONTENTION_SHARE * sent.hidden_s,
        samples=step.size.batch_size * num_passes * links.shards.size * links.replicas.size,
    )


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
    num_passes: int,
    *,
    gradient_widening: float,
    stretch: float,
) -> UnitLayout:
    """Returns the blocks with their bytes and the time of one pass."""
    of_kind = block_seconds(trace, facts, seconds_of, num_passes)

    def unit(kind: int, count: int) -> Unit:
        weights, gradients = facts.weight_bytes[kind]
        return Unit(
            count=count,
            weight_bytes=weights,
            gradient_bytes=gradients * gradient_widening,
            forward_s=stretch * of_kind[kind].forward_s,
            backward_s=stretch * of_kind[kind].backward_s,
        )

    blocks = tuple(unit(number, kind.count) for number, kind in enumerate(trace.kinds))
    return UnitLayout(blocks=blocks, outside=unit(OUTSIDE, 1))
