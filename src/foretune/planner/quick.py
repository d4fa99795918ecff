"""A fast estimate for trying many settings: extrapolates the peak of a step over its depth in milliseconds."""

from dataclasses import replace

from foretune.choices.experiment import Experiment
from foretune.choices.step_form import NO_HABITS, Numerics, TrainerHabits
from foretune.core.values.step_trace import StepTrace
from foretune.planner.block_events import Sizes, Variant
from foretune.planner.expansion import Expansions, peaks_by_phase
from foretune.planner.sizing import StepSize
from foretune.planner.swapping import moved_bytes
from foretune.planner.traces import Mixed, Traces, mixed_step, variant_of
from foretune.trace.shipped import Geometry

# Two blocks at each end of a stack differ from the rest; beyond them each block adds the same.
_FEWEST = 4


def quick_peak_bytes(
    traces: Traces,
    experiment: Experiment,
    size: StepSize,
    geometry: Geometry,
    numerics: Numerics = "cuda",
    *,
    habits: TrainerHabits = NO_HABITS,
) -> float:
    """Returns the peak of live bytes of a step, to within about a percent.

    The peak of each phase grows linearly with the blocks, so a few blocks are enough. Between no and all blocks
    recomputed it is interpolated. Each checkpointed block saves the same, except for the last of the stack: when it is
    recomputed, everything saved of the others is still in memory.
    """
    variant, sizes = variant_of(experiment, geometry, habits), size.in_trace(geometry)
    mixed = mixed_step(traces, experiment, size, geometry, numerics, habits=habits)
    plain = replace(variant, chosen=frozenset(), swapped=())
    ends = []
    for trace in (mixed.kept, mixed.checkpointed):
        key = (id(trace), sizes, plain)
        if key not in traces.quick_peaks:
            traces.quick_peaks[key] = _peak_bytes(trace, sizes, plain, traces.expansions)
        ends.append(traces.quick_peaks[key])
    num_units = sum(kind.count for kind in mixed.kept.kinds)
    num_saving = len(mixed.chosen) - (num_units - 1 in mixed.chosen)
    weight = num_saving / max(1, num_units - 1)
    swapped = _swapped_bytes(mixed, sizes, variant, experiment.levers.block_swap_prefetch)
    return (1 - weight) * ends[0] + weight * ends[1] - swapped


def _swapped_bytes(mixed: Mixed, sizes: Sizes, variant: Variant, prefetch: int) -> int:
    """Returns the swapped bytes on the host, minus those of a running block and of those that are copied ahead: of the
    smallest blocks, to keep the estimate low.
    """
    moved, units = moved_bytes(mixed.checkpointed, sizes, variant.swapped), variant.swapped
    blocks = sorted(
        num_bytes // unit.num_swapped
        for num_bytes, unit in zip(moved, units, strict=True)
        for _ in range(unit.num_swapped)
    )
    num_running = min((unit.num_swapped for unit in units), default=0)
    return sum(moved) - sum(blocks[: num_running + prefetch])


def _peak_bytes(trace: StepTrace, sizes: Sizes, variant: Variant, expansions: Expansions) -> float:
    full = [kind.count for kind in trace.kinds]
    few = [count if not kind.middle else min(count, _FEWEST) for kind, count in zip(trace.kinds, full, strict=True)]
    at_few = peaks_by_phase(trace, sizes, few, variant, expansions)
    totals = {phase: float(num_bytes) for phase, num_bytes in at_few.items()}
    for index, (count, whole) in enumerate(zip(few, full, strict=True)):
        if count < whole:
            more = [*few]
            more[index] += 1
            at_more = peaks_by_phase(trace, sizes, more, variant, expansions)
            for phase, num_bytes in at_more.items():
                totals[phase] += (num_bytes - at_few[phase]) * (whole - count)
    return max(totals.values())
