"""What a trace says about its blocks one by one: their weights, and when in a pass they compute."""

from collections.abc import Mapping
from typing import NamedTuple

from foretune.core.values.step_trace import NEVER, OUTSIDE, StepTrace, Work
from foretune.core.vocabulary import WEIGHTS, MemoryPart, StepPhase
from foretune.planner.block_events import Sizes
from foretune.planner.timing.work_times import PASS, LayoutFacts, Part, WorkTimes

_USUAL_FORWARD_SHARE = 1 / 3


class BlockSeconds(NamedTuple):
    """One block, or what is outside of all blocks, in one pass."""

    forward_s: float
    backward_s: float
    """With what is recomputed."""


def layout_facts(trace: StepTrace, sizes: Sizes, work_times: WorkTimes) -> LayoutFacts:
    key = (id(trace), sizes)
    if key not in work_times.layouts:
        weights = {kind: _weight_bytes(trace, kind, sizes) for kind in (OUTSIDE, *range(len(trace.kinds)))}
        # The value holds the trace whose id is in the key.
        work_times.layouts[key] = (trace, LayoutFacts(weights, _forward_shares(trace.work, sizes)))
    return work_times.layouts[key][1]


def block_seconds(
    trace: StepTrace, facts: LayoutFacts, seconds_of: Mapping[Part, float], num_passes: int
) -> dict[int, BlockSeconds]:
    """Returns the seconds of one block of each kind, from those of all blocks and passes.

    Traces of models whose blocks all differ have their work outside the blocks; it is spread evenly over them.
    """
    num_blocks = sum(kind.count for kind in trace.kinds)
    has_work = any(busy_s for (part, kind), busy_s in seconds_of.items() if part == PASS and kind != OUTSIDE)
    share = 0.0 if has_work or not num_blocks else 1 / num_blocks

    def seconds(kind: int, count: float) -> BlockSeconds:
        whole_s = seconds_of.get((PASS, kind), 0.0) / num_passes * count
        forward_s = facts.forward_shares.get(kind, _USUAL_FORWARD_SHARE) * whole_s
        return BlockSeconds(forward_s, whole_s - forward_s)

    spread, found = seconds(OUTSIDE, share), {OUTSIDE: seconds(OUTSIDE, 0.0 if share else 1.0)}
    for number, kind in enumerate(trace.kinds):
        own = seconds(number, 1 / kind.count)
        found[number] = BlockSeconds(own.forward_s + spread.forward_s, own.backward_s + spread.backward_s)
    return found


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
