"""How long one optimizer step takes on one device, and what bounds it."""

from collections.abc import Mapping
from dataclasses import dataclass

from foretune.choices.experiment import Experiment
from foretune.choices.step_form import NO_HABITS, Numerics, TrainerHabits
from foretune.core.values.step_trace import OUTSIDE, StepTrace
from foretune.planner.block_events import Sizes
from foretune.planner.composing.forms import composed_layer
from foretune.planner.sizing import StepSize
from foretune.planner.timing.constants import TimeConstants, shipped_constants
from foretune.planner.timing.speed import DeviceSpeed
from foretune.planner.timing.work_times import PASS, UPDATE, Part, Times, WorkTimes
from foretune.planner.traces import Traces, forms_of, mixed_step
from foretune.planner.transfers import Moved
from foretune.trace.shipped import Geometry, recipes

_SHARPNESS = 3
"""Device and host work side by side: the longer one counts, and a part of the shorter one. Of a step of which both
take half as long as it does alone, 1.26 times that; chosen before any row was compared."""


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """One optimizer step of one device: the whole, and each resource as if it were alone."""

    step_s: float
    compute_s: float
    bandwidth_s: float
    host_s: float
    """Time of the host to issue all operators."""
    bus_s: float
    host_work_s: float
    model_flops: float
    hardware_flops: float

    @property
    def device_s(self) -> float:
        return self.compute_s + self.bandwidth_s

    def shares(self) -> Mapping[str, float]:
        """What the step waits for, as shares of it that add up to one.

        What the device does not need of the time it waits for the host.
        """
        device_s = self.device_s + self.bus_s + self.host_work_s
        waiting = max(0.0, self.step_s - device_s)
        total = device_s + waiting
        if not total:
            return {}
        return {
            "compute": self.compute_s / total,
            "bandwidth": self.bandwidth_s / total,
            "bus": self.bus_s / total,
            "host": (waiting + self.host_work_s) / total,
        }

    @property
    def bound_by(self) -> str:
        shares = self.shares()
        return max(shares, key=lambda name: shares[name]) if shares else "compute"


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A step whose time is asked for."""

    experiment: Experiment
    size: StepSize
    geometry: Geometry
    moved: Moved
    numerics: Numerics = "cuda"
    habits: TrainerHabits = NO_HABITS
    copies_overlap: float = 0.0
    """Share of the traffic over the bus that computation hides."""


def step_seconds(
    step: TimedStep,
    traces: Traces,
    speed: DeviceSpeed,
    work_times: WorkTimes,
    constants: TimeConstants | None = None,
    *,
    is_cpu: bool = False,
) -> StepSeconds:
    """Returns the time of one optimizer step. Raises `NotKnown` if something of it is not known.

    `is_cpu`: host and device are the same cores, so that their times add up.
    """
    return seconds_of(planned_step(step, traces), speed, work_times, constants, is_cpu=is_cpu)


@dataclass(frozen=True, kw_only=True)
class TimedTrace:
    """A trace of a step, with how often the work of each of its parts is done."""

    trace: StepTrace
    sizes: Sizes
    layer: str
    """The quantised layer that is composed into the trace; empty if there is none."""
    how_often: Mapping[Part, float]


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step without the device it runs on: a search asks for its time on many."""

    traces: tuple[TimedTrace, ...]
    moved: Moved
    copies_overlap: float


def seconds_of(
    step: PlannedStep,
    speed: DeviceSpeed,
    work_times: WorkTimes,
    constants: TimeConstants | None = None,
    *,
    is_cpu: bool = False,
) -> StepSeconds:
    """Returns the time of a step whose traces were found before."""
    constants = constants or shipped_constants()
    total = _total(step, speed, work_times)
    host_s = speed.launch_s() * (total.num_operators + (constants.recomputing_operator - 1) * total.num_recomputing)
    bus_s = 0.0
    if not is_cpu and step.moved.total_bytes:
        bus_s = speed.copy_s(step.moved.to_host_bytes) + speed.copy_s(step.moved.to_device_bytes)
        bus_s *= 1 - step.copies_overlap
    device_s = constants.device * (total.compute_s + total.bandwidth_s)
    if is_cpu:
        together_s = device_s + host_s
    else:
        together_s = ((device_s + bus_s) ** _SHARPNESS + host_s**_SHARPNESS) ** (1 / _SHARPNESS)
    return StepSeconds(
        step_s=together_s + total.host_work_s,
        compute_s=constants.device * total.compute_s,
        bandwidth_s=constants.device * total.bandwidth_s,
        host_s=host_s,
        bus_s=bus_s,
        host_work_s=total.host_work_s,
        model_flops=total.model_flops,
        hardware_flops=total.model_flops + total.recomputed_flops,
    )


def planned_step(step: TimedStep, traces: Traces) -> PlannedStep:
    """Finds the traces of the blocks as they are: some recomputed, the others not; passes as often as gradients
    accumulate.
    """
    mixed = mixed_step(traces, step.experiment, step.size, step.geometry, step.numerics, habits=step.habits)
    counts = [kind.count for kind in mixed.kept.kinds]
    starts = [sum(counts[:index]) for index in range(len(counts))]
    again = [
        sum(start <= number < start + count for number in mixed.chosen)
        for start, count in zip(starts, counts, strict=True)
    ]
    # Work that is done once includes that of blocks that are not repeated.
    share = len(mixed.chosen) / max(1, sum(counts))
    forms = forms_of(step.experiment, step.geometry, step.numerics, habits=step.habits)
    found = []
    for trace, form, is_again in ((mixed.kept, forms[0], False), (mixed.checkpointed, forms[1], True)):
        blocks = again if is_again else [count - often for count, often in zip(counts, again, strict=True)]
        of_kind = {OUTSIDE: share if is_again else 1 - share, **dict(enumerate(blocks))}
        passes = {PASS: step.experiment.train.gradient_accumulation, UPDATE: 1}
        found.append(
            TimedTrace(
                trace=trace,
                sizes=step.size.in_trace(step.geometry),
                layer=(composed_layer(form) if traces.is_composed(form) else None) or "",
                how_often={
                    (part, kind): often * passes[part] for kind, often in of_kind.items() if often for part in passes
                },
            )
        )
    return PlannedStep(traces=tuple(found), moved=step.moved, copies_overlap=step.copies_overlap)


def _total(step: PlannedStep, speed: DeviceSpeed, work_times: WorkTimes) -> Times:
    total = Times()
    for one in step.traces:
        if one.how_often:
            recipe = recipes().layers[one.layer] if one.layer else None
            found = work_times.of(one.trace, one.sizes, speed, recipe, one.layer)
            for part, how_often in one.how_often.items():
                total = total.plus(found[part], how_often)
    return total
