"""Which of the repeated blocks are recomputed: training and planning ask the same functions."""

from functools import cache

from foretune.choices.training import Levers


@cache
def chosen_blocks(num_blocks: int, share: float) -> tuple[int, ...]:
    """Which blocks are recomputed: the share of them, spread evenly, the last one first to be chosen."""
    return tuple(i for i in range(num_blocks) if int((i + 1) * share + 1e-9) > int(i * share + 1e-9))


@cache
def segments(stacks: tuple[int, ...], width: int, stride: int | None = None) -> tuple[tuple[int, ...], ...]:
    """The blocks, by their numbers, in groups of neighbours of one stack; the last of a stack may be smaller.

    `stacks` are the numbers of blocks in each stack, in the order they run. A group begins at every Nth block of
    a stack: with a stride the blocks between are in none, without one there are none between.
    """
    assert stride is None or stride >= width, "segments do not overlap"
    groups: list[tuple[int, ...]] = []
    start = 0
    for count in stacks:
        end = start + count
        groups += [tuple(range(first, min(first + width, end))) for first in range(start, end, stride or width)]
        start = end
    return tuple(groups)


def chosen_segments(stacks: tuple[int, ...], levers: Levers) -> tuple[tuple[int, ...], ...]:
    """The segments that are recomputed, each as the numbers of its blocks."""
    if levers.gradient_checkpointing <= 0:
        return ()
    groups = segments(stacks, levers.checkpoint_segment, levers.checkpoint_stride)
    if levers.checkpoint_stride is not None:
        return groups
    return tuple(groups[index] for index in chosen_blocks(len(groups), levers.gradient_checkpointing))


def without_idle_choices(levers: Levers) -> Levers:
    """The same levers; what is said of segments says nothing where no block is recomputed."""
    if levers.gradient_checkpointing > 0:
        return levers
    return levers.model_copy(update={"checkpoint_segment": 1, "checkpoint_stride": None})


def unit_width(levers: Levers) -> int:
    """How many neighbouring blocks make one of the units of which a step repeats itself."""
    width, stride = levers.checkpoint_segment, levers.checkpoint_stride
    # Segments that begin in the middle of others' places: then it is a segment with what is kept behind it.
    return stride if width > 1 and stride is not None and stride % width else width


def units(stacks: tuple[int, ...], levers: Levers) -> tuple[tuple[int, ...], ...]:
    """All blocks, by their numbers, in the units of which a step repeats itself."""
    return segments(stacks, unit_width(levers))


def chosen_units(stacks: tuple[int, ...], levers: Levers) -> tuple[int, ...]:
    """Which of the units begin with blocks that are recomputed."""
    starts = {segment[0] for segment in chosen_segments(stacks, levers)}
    return tuple(number for number, unit in enumerate(units(stacks, levers)) if unit[0] in starts)
