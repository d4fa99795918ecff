"""The digest of a trace: which operators, phases and blocks the time went to, and what held the device back."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretune.analyse.memory_timeline import MemoryTimeline, memory_timeline
from foretune.analyse.trace_events import (
    Kernel,
    Operator,
    Span,
    TraceEvents,
    overlap_us,
    read_trace,
    union,
)
from foretune.core.errors import UserError
from foretune.core.input_files import shown
from foretune.core.vocabulary import COMPUTING, TimePhase

_COPIES = frozenset({"aten::copy_", "aten::_foreach_copy_"})
OUTSIDE = "outside of the blocks"


@dataclass(frozen=True)
class OperatorTime:
    """All calls of one operator, without what they call themselves; on a device, the work that they started there."""

    name: str
    seconds: float
    share: float
    """Of the steps' time."""
    num_calls: int


@dataclass(frozen=True)
class ModuleTime:
    """A repeated block, or what is outside of them."""

    name: str
    forward_s: float
    backward_s: float

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of the steps' time that do not overlap. What is left is computing."""

    input: float
    """The device has nothing to do while the host waits for a batch."""
    launch: float
    """The device has nothing to do while the host prepares operators. On a CPU: time between operators."""
    idle: float
    """The device has nothing to do in any other phase: logging, or outside of all phases."""
    copy: float
    """Moving tensors between devices, types and layouts, and nothing else; on a CPU, outside of making batches."""

    @property
    def compute(self) -> float:
        return max(0.0, 1 - self.input - self.launch - self.idle - self.copy)


@dataclass(frozen=True, kw_only=True)
class TraceDigest:
    """What a trace says, in numbers."""

    device: str
    num_steps: int
    wall_s: float
    """Of all steps together, slowed by the profiler."""
    operators: tuple[OperatorTime, ...]
    """By time, longest first; all of them."""
    phases_s: dict[str, float]
    """They sum to `wall_s`."""
    modules: tuple[ModuleTime, ...]
    """In the order in which they first ran."""
    shares: Shares
    memory: MemoryTimeline | None
    left_out: str | None
    """What the trace does not hold, because it would have been too large."""

    @property
    def longest(self) -> tuple[OperatorTime, ...]:
        return self.operators[:10]


def newest_trace(directory: Path) -> Path:
    """The newest trace below a run's `profile/`, or the trace itself."""
    if directory.is_file():
        return directory
    found = sorted((directory / "profile").glob("*.pt.trace.json*"))
    if not found:
        raise UserError(
            f"{directory} has no trace. Add `profile: {{at_step: 20, steps: 3}}` to its experiment before it runs, "
            "or run: foretune profile experiment.yaml"
        )
    return found[-1]


def digest(path: Path, *, within: Path | None = None) -> TraceDigest:
    """Reads a trace and adds it up; `within` is the folder that it must lie in."""
    trace = read_trace(path, within=within)
    if not trace.steps:
        raise UserError(f"{shown(path)} has no steps in it. A trace of `foretune profile` names each as ProfilerStep#.")
    try:
        return _added_up(trace)
    # What is in the events is checked by using it: an operator without a name, an allocation without its bytes.
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{shown(path)} is not a readable trace: {type(error).__name__}: {error}") from error


def _added_up(trace: TraceEvents) -> TraceDigest:
    trace.operators = [operator for operator in trace.operators if _is_inside(trace.steps, operator.begin_us)]
    wall_us = sum(end - begin for begin, end in trace.steps)
    return TraceDigest(
        device=str(trace.notes.get("device", "cuda" if trace.kernels else "cpu")),
        num_steps=len(trace.steps),
        wall_s=wall_us / 1e6,
        operators=_operators(trace, wall_us),
        phases_s=_phases_s(trace, wall_us),
        modules=_modules(trace),
        shares=_shares(trace, wall_us),
        memory=memory_timeline(trace),
        left_out=trace.notes.get("left_out"),
    )


def _is_inside(steps: Sequence[Span], time_us: float) -> bool:
    """Steps are in order, and follow each other."""
    place = bisect_right(steps, (time_us, math.inf)) - 1
    return place >= 0 and time_us < steps[place][1]


def _costs(trace: TraceEvents) -> list[tuple[Operator, float]]:
    """Each operator with the microseconds that are its own: on the device where there is one, else on the host."""
    if not trace.kernels:
        return [(operator, operator.self_us) for operator in trace.operators]
    started: dict[int | None, float] = {}
    for kernel in trace.kernels:
        started[kernel.external_id] = started.get(kernel.external_id, 0.0) + kernel.end_us - kernel.begin_us
    return [
        (operator, started[operator.external_id])
        for operator in trace.operators
        if operator.external_id in started and operator.external_id is not None
    ]


def _operators(trace: TraceEvents, wall_us: float) -> tuple[OperatorTime, ...]:
    times: dict[str, list[float]] = {}
    for operator, cost_us in _costs(trace):
        times.setdefault(operator.name, []).append(cost_us)
    made = [OperatorTime(name, sum(us) / 1e6, sum(us) / wall_us, len(us)) for name, us in times.items()]
    return tuple(sorted(made, key=lambda one: (-one.seconds, one.name)))


def _phases_s(trace: TraceEvents, wall_us: float) -> dict[str, float]:
    phases: dict[str, float] = {}
    for begin, end, name in trace.phases:
        if _is_inside(trace.steps, begin):
            phases[name] = phases.get(name, 0.0) + (end - begin) / 1e6
    phases[TimePhase.OTHER] = max(0.0, wall_us / 1e6 - sum(phases.values()))
    return phases


def _modules(trace: TraceEvents) -> tuple[ModuleTime, ...]:
    """A block's forward time has its second computing, too, where that happens in the backward pass: by phase."""
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    for operator, cost_us in _costs(trace):
        if operator.phase not in (TimePhase.FORWARD, TimePhase.BACKWARD):
            continue
        name = operator.block or OUTSIDE
        side = forward if operator.phase == TimePhase.FORWARD else backward
        side[name] = side.get(name, 0.0) + cost_us / 1e6
    names = dict.fromkeys([*forward, *backward])
    return tuple(ModuleTime(name, forward.get(name, 0.0), backward.get(name, 0.0)) for name in names)


def _shares(trace: TraceEvents, wall_us: float) -> Shares:
    """On a device its work counts, on a CPU the outermost operators of all threads."""
    copy_us: float
    if trace.kernels:
        busy = union([(kernel.begin_us, kernel.end_us) for kernel in trace.kernels])
        copy_us = _copying_alone_us(trace)
    else:
        spans = sorted((o.begin_us, o.end_us) for o in trace.operators if o.is_outermost)
        busy = union(spans)
        # Copies that make a batch are part of the input.
        copy_us = sum(o.self_us for o in trace.operators if o.name in _COPIES and o.phase != TimePhase.DATA)
    starts = [begin for begin, _ in busy]

    def unused_us(is_counted: Callable[[str], bool]) -> float:
        return sum(
            end - begin - overlap_us(busy, begin, end, starts)
            for begin, end, name in trace.phases
            if is_counted(name) and _is_inside(trace.steps, begin)
        )

    total_us = sum(end - begin - overlap_us(busy, begin, end, starts) for begin, end in trace.steps)
    # A CPU that makes a batch is busy, but not with the step.
    input_us = unused_us(lambda name: name == TimePhase.DATA) if trace.kernels else _data_us(trace)
    launch_us = unused_us(lambda name: name in COMPUTING)
    unused_data_us = unused_us(lambda name: name == TimePhase.DATA)
    return Shares(
        input=input_us / wall_us,
        launch=launch_us / wall_us,
        idle=max(0.0, total_us - launch_us - unused_data_us) / wall_us,
        copy=copy_us / wall_us,
    )


def _copying_alone_us(trace: TraceEvents) -> float:
    """Time in which a device only copies: behind computing, as offloaded activations go, a copy costs nothing."""
    kernels = [kernel for kernel in trace.kernels if _in_steps(trace, kernel)]
    copying = union([(k.begin_us, k.end_us) for k in kernels if k.kind == "gpu_memcpy"])
    computing = union([(k.begin_us, k.end_us) for k in kernels if k.kind != "gpu_memcpy"])
    starts = [begin for begin, _ in computing]
    return sum(end - begin - overlap_us(computing, begin, end, starts) for begin, end in copying)


def _data_us(trace: TraceEvents) -> float:
    return sum(
        end - begin for begin, end, name in trace.phases if name == TimePhase.DATA and _is_inside(trace.steps, begin)
    )


def _in_steps(trace: TraceEvents, kernel: Kernel) -> bool:
    return trace.steps[0][0] <= kernel.begin_us < trace.steps[-1][1]
