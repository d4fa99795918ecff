"""A near answer in milliseconds, for trying many settings: the peak of a step by extrapolating over its depth."""

from dataclasses import replace

from foretune.choices.checkpointing import chosen_blocks
from foretune.choices.experiment import Experiment
from foretune.choices.step_form import Numerics, StepForm
from foretune.core.values.step_trace import StepTrace
from foretune.plan.expansion import Sizes, Variant, expand_counted
from foretune.plan.live_memory import CUDA_ROUNDING_BYTES, find_peak
from foretune.plan.sizing import StepSize
from foretune.plan.traces import Traces, variant_of
from foretune.trace.shipped import Geometry

# Two and two blocks at the ends of a stack differ from the rest; from there on each block adds the same.
_FEWEST = 4


def quick_peak_bytes(
    traces: Traces, experiment: Experiment, size: StepSize, geometry: Geometry, numerics: Numerics = "cuda"
) -> float:
    """The most live bytes of a step, to within about a percent.

    The peak of each phase grows evenly with the blocks, so a few blocks tell all of them. Between no and all blocks
    computed again it is interpolated. Each block that is chosen saves the same, but for the last of the stack: when it
    is computed again, all that is kept of the others is still there.
    """
    share = experiment.levers.gradient_checkpointing
    variant = variant_of(experiment)
    ends, num_blocks = {}, 0
    for is_checkpointed in {share > 0, share >= 1}:
        trace = traces.step(StepForm.of(experiment, is_checkpointed=is_checkpointed, numerics=numerics), size)
        key = (id(trace), size.in_trace(geometry), replace(variant, share=None))
        if key not in traces.quick_peaks:
            traces.quick_peaks[key] = _peak_bytes(trace, size.in_trace(geometry), variant)
        ends[is_checkpointed] = traces.quick_peaks[key]
        num_blocks = sum(kind.count for kind in trace.kinds)
    if share <= 0 or share >= 1:
        return ends[share >= 1]
    chosen = chosen_blocks(num_blocks, share)
    num_saved = len(chosen) - (num_blocks - 1 in chosen)
    weight = num_saved / max(1, num_blocks - 1)
    return (1 - weight) * ends[False] + weight * ends[True]


def _peak_bytes(trace: StepTrace, sizes: Sizes, variant: Variant) -> float:
    full = [kind.count for kind in trace.kinds]
    few = [count if not kind.middle else min(count, _FEWEST) for kind, count in zip(trace.kinds, full, strict=True)]
    at_few = _by_phase(trace, sizes, few, variant)
    totals = {phase: float(num_bytes) for phase, num_bytes in at_few.items()}
    for index, (count, whole) in enumerate(zip(few, full, strict=True)):
        if count < whole:
            more = [*few]
            more[index] += 1
            at_more = _by_phase(trace, sizes, more, variant)
            for phase, num_bytes in at_more.items():
                totals[phase] += (num_bytes - at_few[phase]) * (whole - count)
    return max(totals.values())


def _by_phase(trace: StepTrace, sizes: Sizes, counts: list[int], variant: Variant) -> dict[str, int]:
    return find_peak(expand_counted(trace, sizes, counts, variant), CUDA_ROUNDING_BYTES, 0).by_phase
