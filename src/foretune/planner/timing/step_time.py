"""How long one optimizer step takes on one device, and what bounds it."""

from collections.abc import Mapping
from dataclasses import dataclass

from foretune.choices.checkpointing import units, without_idle_choices
from foretune.choices.experiment import Experiment
from foretune.choices.method import Full
from foretune.choices.step_form import NO_HABITS, Numerics, TrainerHabits
from foretune.choices.swapping import swap_schedule
from foretune.core.values.step_trace import NEVER, OUTSIDE, StepTrace
from foretune.core.vocabulary import MemoryPart
from foretune.planner.block_events import Sizes
from foretune.planner.composing.forms import composed_layer
from foretune.planner.sizing import StepSize
from foretune.planner.swapping import moved_bytes, swapped_units
from foretune.planner.timing.constants import AS_MEASURED, TimeConstants, shipped_constants
from foretune.planner.timing.host_operators import EIGHT_BIT_PRODUCT, Issuer
from foretune.planner.timing.layout_facts import layout_facts
from foretune.planner.timing.speed import DeviceSpeed
from foretune.planner.timing.swap_overlap import SwapCopies
from foretune.planner.timing.work_times import PASS, TORCH_DEFAULTS, UPDATE, Float32Formats, Part, Times, WorkTimes
from foretune.planner.traces import Mixed, Traces, forms_of, mixed_step
from foretune.planner.transfers import Moved
from foretune.trace.shipped import Geometry, recipes

_SHARPNESS = 3
"""Device and host work side by side: the longer one counts, and a part of the shorter one. If both take as long, the
step takes 1.26 times that."""


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """One optimizer step of one device: the whole, and each resource as if it were alone."""

    step_s: float
    compute_s: float
    bandwidth_s: float
    host_s: float
    """Time of the host to issue all operators."""
    bus_s: float
    """What the step waits for copies between host and device."""
    hidden_copy_s: float
    """Copies that run beside computation."""
    host_work_s: float
    model_flops: float
    hardware_flops: float

    @property
    def device_s(self) -> float:
        return self.compute_s + self.bandwidth_s

    @property
    def is_bound_by_device(self) -> bool:
        return self.device_s + self.bus_s > self.host_s + self.host_work_s

    def shares(self) -> Mapping[str, float]:
        """What the step waits for, as shares of it: the device's own work first, then the host in what is left."""
        busy_s = self.device_s + self.bus_s + self.host_work_s
        waiting_s = max(0.0, self.step_s - busy_s)
        total_s = (busy_s + waiting_s) or 1.0
        return {
            "compute": self.compute_s / total_s,
            "bandwidth": self.bandwidth_s / total_s,
            "bus": self.bus_s / total_s,
            "host": (waiting_s + self.host_work_s) / total_s,
        }

    @property
    def bound_by(self) -> str:
        shares = self.shares()
        return max(shares, key=lambda name: shares[name])


@dataclass(frozen=True, kw_only=True)
class TimedTrace:
    """A trace of a step or a forward pass, with how often the work of each of its parts is done."""

    trace: StepTrace
    sizes: Sizes
    layer: str
    """The quantised layer that is composed into the trace; empty if there is none."""
    how_often: Mapping[Part, float]
    formats: Float32Formats = TORCH_DEFAULTS
    only_forward: bool = False
    """Whether what a step does for gradients is left out."""
    is_rotated_int8: bool = False
    """Whether frozen layers of blocks are those of `timing.rotated_int8`."""

    def times(self, speed: DeviceSpeed, work_times: WorkTimes) -> Mapping[Part, Times]:
        """Returns the times of each part, once."""
        layer = recipes().layers[self.layer] if self.layer else None
        return work_times.of(
            self.trace,
            self.sizes,
            speed,
            layer,
            self.layer,
            formats=self.formats,
            only_forward=self.only_forward,
            is_rotated_int8=self.is_rotated_int8,
        )


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A step whose time is asked for."""

    experiment: Experiment
    size: StepSize
    geometry: Geometry
    moved: Moved
    numerics: Numerics = "cuda"
    habits: TrainerHabits = NO_HABITS
    copies_cross: bool = False
    """Whether copies to the host and back run at the same time, on streams of their own."""
    is_cpu: bool = False
    """Whether host and device are the same cores, so that their times add up."""
    is_rotated_int8: bool = False
    """Whether the base is quantised by SDNQ, which the experiment cannot say."""
    encoders: tuple[TimedTrace, ...] = ()
    """What encodes images and captions before each pass, where they are not cached."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """What a step needs of each resource, as tables and data sheets say."""

    total: Times
    by_part: Mapping[Part, Times]
    """Of pass and update, by kind of block."""
    operators_s: float
    """Of the host, for all operators."""
    bus_s: float
    """Copies that computation waits for, without those of swapped blocks."""
    swap: SwapCopies | None = None
    is_cpu: bool

    def seconds(self, constants: TimeConstants | None = None) -> StepSeconds:
        """Without constants, those that ship."""
        constants = constants or (AS_MEASURED if self.is_cpu else shipped_constants())
        total = self.total
        compute_s, bandwidth_s = compute_seconds(total, constants), constants.device * total.bandwidth_s
        swap_s = 0.0 if self.swap is None else self.swap.exposed_s(self._busy_seconds(constants))
        hidden_s = 0.0 if self.swap is None else max(0.0, self.swap.total_s - swap_s)
        device_s, host_s = compute_s + bandwidth_s + self.bus_s + swap_s, constants.host * self.operators_s
        together_s = device_s + host_s if self.is_cpu else side_by_side_s(device_s, host_s)
        return StepSeconds(
            step_s=together_s + total.host_work_s,
            compute_s=compute_s,
            bandwidth_s=bandwidth_s,
            host_s=host_s,
            bus_s=self.bus_s + swap_s,
            hidden_copy_s=hidden_s,
            host_work_s=total.host_work_s,
            model_flops=total.model_flops,
            hardware_flops=total.model_flops + total.recomputed_flops,
        )

    def _busy_seconds(self, constants: TimeConstants) -> dict[Part, float]:
        return {part: busy_seconds(times, constants) for part, times in self.by_part.items()}


def busy_seconds(times: Times, constants: TimeConstants) -> float:
    """Returns the time of the device's own work, without what it waits for."""
    return compute_seconds(times, constants) + constants.device * times.bandwidth_s


def compute_seconds(times: Times, constants: TimeConstants) -> float:
    """Returns the time of products and attention."""
    return constants.device * (constants.products * times.product_s + times.attention_s)


def step_seconds(
    step: TimedStep,
    traces: Traces,
    speed: DeviceSpeed,
    work_times: WorkTimes,
    constants: TimeConstants | None = None,
) -> StepSeconds:
    """Returns the time of one optimizer step. Raises `NotKnown` if something of it is not known."""
    return step_parts(step, traces, speed, work_times).seconds(constants)


def step_parts(step: TimedStep, traces: Traces, speed: DeviceSpeed, work_times: WorkTimes) -> StepParts:
    """Returns what a step needs, before constants that are learnt."""
    mixed = mixed_step(traces, step.experiment, step.size, step.geometry, step.numerics, habits=step.habits)
    return parts_of(planned_step(step, traces, mixed), speed, work_times)


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step without the device it runs on: a search asks for its time on many."""

    step: TimedStep
    traces: tuple[TimedTrace, ...]


def parts_of(planned: PlannedStep, speed: DeviceSpeed, work_times: WorkTimes) -> StepParts:
    """Returns what a step needs whose traces were found before."""
    step, by_part, total = planned.step, _by_part(planned, speed, work_times), Times()
    for times in by_part.values():
        total = total.plus(times)
    for one in step.encoders:
        # Their operations are not the model's.
        encoding = summed(one, speed, work_times)._replace(model_flops=0)
        total = total.plus(encoding, step.experiment.train.gradient_accumulation)
    return StepParts(
        total=total,
        by_part=by_part,
        operators_s=_host_s(planned, total, speed),
        bus_s=0.0 if step.is_cpu else _bus_s(step, speed),
        swap=None if step.is_cpu else _swap_copies(planned, speed, work_times),
        is_cpu=step.is_cpu,
    )


def summed(one: TimedTrace, speed: DeviceSpeed, work_times: WorkTimes) -> Times:
    """Returns the times of all parts of a trace together."""
    found, total = one.times(speed, work_times), Times()
    for part, often in one.how_often.items():
        total = total.plus(found[part], often)
    return total


def _host_s(planned: PlannedStep, total: Times, speed: DeviceSpeed) -> float:
    """Returns the host's time for all operators, and for going through the trained tensors in the update."""
    step = planned.step
    has_adapters = not isinstance(step.experiment.method, Full)
    tensors_s = speed.update_s()
    if tensors_s:
        tensors_s *= sum(num_trained_tensors(one) for one in planned.traces)
    slow_in_backward = total.num_recomputing_in_backward
    in_modules = total.num_operators - total.num_in_backward - total.num_in_update
    slow_in_modules = total.num_recomputing - slow_in_backward
    if step.habits.torchao_autograd:
        in_modules += EIGHT_BIT_PRODUCT * total.num_8bit_products
    counts: tuple[tuple[Issuer, bool, float], ...] = (
        ("modules", False, in_modules - slow_in_modules),
        ("modules", True, slow_in_modules),
        ("autograd", False, total.num_in_backward - slow_in_backward),
        ("autograd", True, slow_in_backward),
        ("optimizer", False, total.num_in_update),
    )
    return tensors_s + sum(
        count * speed.launch_s(has_adapters=has_adapters, is_recomputed=is_slow, issued_by=issuer)
        for issuer, is_slow, count in counts
    )


def num_trained_tensors(timed: TimedTrace) -> float:
    """Returns how many tensors the update goes through, in the share of the step that a trace has."""
    trace, found = timed.trace, 0.0
    for (part, kind), often in timed.how_often.items():
        if part == UPDATE:
            storages = trace.outside if kind == OUTSIDE else trace.kinds[kind].of_block(0, trace.kinds[kind].count)
            found += often * sum(
                trace.categories[storage.category] == MemoryPart.TRAINED_WEIGHTS and storage.released.phase == NEVER
                for storage in storages
            )
    return found


def _bus_s(step: TimedStep, speed: DeviceSpeed) -> float:
    moved = step.moved
    others = (moved.to_host_bytes, moved.to_device_bytes - moved.swapped_bytes)
    directions = [speed.copy_s(count) for count in others if count]
    return max(directions, default=0.0) if step.copies_cross else sum(directions)


def _swap_copies(planned: PlannedStep, speed: DeviceSpeed, work_times: WorkTimes) -> SwapCopies | None:
    step, levers = planned.step, planned.step.experiment.levers
    if not step.moved.swapped_bytes:
        return None
    timed = next(one for one in reversed(planned.traces) if one.how_often)
    of_step = units(step.geometry.stacks, without_idle_choices(levers))
    swapped = swapped_units(of_step, levers.block_swap, levers.block_swap_prefetch)
    schedule = swap_schedule(of_step, levers.block_swap, levers.block_swap_prefetch)
    copy_s = {
        block: speed.copy_s(num_bytes / unit.num_swapped)
        for num_bytes, unit in zip(moved_bytes(timed.trace, timed.sizes, swapped), swapped, strict=True)
        for block in of_step[unit.number]
    }
    return SwapCopies(
        schedule=schedule,
        units=of_step,
        copy_s=copy_s,
        num_passes=step.experiment.train.gradient_accumulation,
        trace=timed.trace,
        facts=layout_facts(timed.trace, timed.sizes, work_times),
    )


def side_by_side_s(device_s: float, host_s: float) -> float:
    """Returns the time in which a device runs what the host issues meanwhile."""
    return float((device_s**_SHARPNESS + host_s**_SHARPNESS) ** (1 / _SHARPNESS))


def planned_step(step: TimedStep, traces: Traces, mixed: Mixed) -> PlannedStep:
    """Returns the traces of a step, and how often each of their parts is done in it."""
    counts = [kind.count for kind in mixed.kept.kinds]
    starts = [sum(counts[:index]) for index in range(len(counts))]
    again = [
        sum(start <= number < start + count for number in mixed.chosen)
        for start, count in zip(starts, counts, strict=True)
    ]
    # Work that is done once includes that of blocks that are not repeated.
    share = len(mixed.chosen) / max(1, sum(counts))
    sizes = step.size.in_trace(step.geometry)
    passes = {PASS: step.experiment.train.gradient_accumulation, UPDATE: 1}
    forms = forms_of(step.experiment, step.geometry, step.numerics, habits=step.habits)
    found = []
    for trace, form, is_again in ((mixed.kept, forms[0], False), (mixed.checkpointed, forms[1], True)):
        blocks = again if is_again else [count - often for count, often in zip(counts, again, strict=True)]
        of_kind = {OUTSIDE: share if is_again else 1 - share, **dict(enumerate(blocks))}
        how_often = {(part, kind): often * passes[part] for part in passes for kind, often in of_kind.items() if often}
        layer = composed_layer(traces.nearest(form)) if traces.is_composed(form) else None
        formats = Float32Formats.of_step(step.experiment.train.precision)
        found.append(
            TimedTrace(
                trace=trace,
                sizes=sizes,
                layer=layer or "",
                how_often=how_often,
                formats=formats,
                is_rotated_int8=step.is_rotated_int8,
            )
        )
    return PlannedStep(step=step, traces=tuple(found))


def _by_part(planned: PlannedStep, speed: DeviceSpeed, work_times: WorkTimes) -> dict[Part, Times]:
    total: dict[Part, Times] = {}
    for one in planned.traces:
        if not one.how_often:
            continue
        found = one.times(speed, work_times)
        for part, often in one.how_often.items():
            total[part] = total.get(part, Times()).plus(found[part], often)
    return total
