"""Whether two recordings of the same form allocate the same, so that no plan's memory changes."""

from foretune.core.values.step_trace import MARK, StepTrace
from foretune.planner.block_events import Sizes
from foretune.planner.expansion import expand
from foretune.planner.live_memory import find_peak

_SIZES: tuple[Sizes, ...] = ((1, 1024, 77, 4), (2, 4096, 512, 16), (4, 16384, 256, 64))
"""Batch, latent positions, text tokens, rank: peaks of traces that are not equal are compared here."""


def memory_differences(old: StepTrace, new: StepTrace) -> tuple[str, ...]:
    """Returns how the peaks of a trace differ from an older recording's, by phase and in all; empty if they agree."""
    if _allocations(old) == _allocations(new):
        return ()
    found = []
    for sizes in _SIZES:
        before, after = _peaks(old, sizes), _peaks(new, sizes)
        found += [
            f"{phase} at {sizes}: {before.get(phase, 0):,} bytes before, {after.get(phase, 0):,} now"
            for phase in sorted({*before, *after})
            if before.get(phase, 0) != after.get(phase, 0)
        ]
    return tuple(found)


def _allocations(trace: StepTrace) -> tuple[object, ...]:
    return trace.phases, trace.backward_phases, trace.categories, trace.growths, trace.outside, trace.kinds


def _peaks(trace: StepTrace, sizes: Sizes) -> dict[str, int]:
    """Returns the peak of live bytes of each phase, and what outlives the step of each part."""
    events = [event for event in expand(trace, sizes) if not event.category.startswith(MARK)]
    peak = find_peak(events)
    lasting = {f"{part} at the peak": num_bytes for part, num_bytes in peak.by_category.items()}
    return {**peak.by_phase, **lasting, "step": peak.num_bytes}
