"""Copies of swapped blocks beside computation: cases by hand, and what must hold for all of them."""

import random
from itertools import pairwise
from typing import Any

import pytest

from foretune.choices.experiment import Experiment
from foretune.choices.step_form import StepForm
from foretune.choices.swapping import SwapSchedule, swap_schedule
from foretune.core.values.step_trace import NEVER, BlockKind, Moment, StepTrace, Storage
from foretune.planner.sizing import StepSize
from foretune.planner.timing.constants import TimeConstants
from foretune.planner.timing.layout_facts import BlockSeconds
from foretune.planner.timing.step_time import StepSeconds, TimedStep, step_seconds
from foretune.planner.timing.swap_overlap import PassPart, exposed_copy_s, parts_of_pass
from foretune.planner.timing.work_times import WorkTimes
from foretune.planner.traces import Traces
from foretune.planner.transfers import Moved
from foretune.trace.shipped import geometries
from tests.planner.timing.even_speed import EvenSpeed
from tests.planner.timing.test_parallel_time import flat, product

THREE = ((0,), (1,), (2,))


def exposed_s(
    units: tuple[tuple[int, ...], ...], num_swapped: int, prefetch: int, block: BlockSeconds, copy_s: float
) -> float:
    schedule = swap_schedule(units, num_swapped, prefetch)
    parts = parts_of_pass(units, [block] * len(units), frozenset(schedule.forward))
    return exposed_copy_s(parts, schedule, dict.fromkeys(schedule.forward, copy_s))


def test_three_blocks_by_hand() -> None:
    """A block takes 1 s forward and 3 s backward, a copy 2 s.

    Forward, block 0 waits 2 s for its copy. It computes until 3; the copy of block 1 ends at 4. Block 1 computes until
    5, and the copy of block 2, which began when block 1 came to its turn at 3, ends at 6. Block 2 computes until 7 and
    stays. Backward, every copy ends before the block of 3 s beside it does.
    """
    assert exposed_s(THREE, 3, 1, BlockSeconds(1, 3), 2) == 2 + 1 + 1


def test_slow_copies_by_hand() -> None:
    """Copies of 10 s, one after another: those of 0, 1 and 2 end at 10, 20 and 30. Block 2 computes until 31, backward
    until 34; the copies of 1 and 0 begin at 31 and 41, and end at 41 and 51.
    """
    waits = (10 - 0) + (20 - 11) + (30 - 21) + (41 - 34) + (51 - 44)
    assert exposed_s(THREE, 3, 1, BlockSeconds(1, 3), 10) == waits


def test_a_block_between_two_swapped_ones_hides_more() -> None:
    """Blocks 1 and 3 of four: 3 is copied while 1 and 2 compute, so that only the first copy is waited for."""
    assert exposed_s(((0,), (1,), (2,), (3,)), 2, 1, BlockSeconds(1, 3), 2) == 2


def test_without_prefetching_every_copy_is_waited_for() -> None:
    assert exposed_s(THREE, 3, 0, BlockSeconds(1, 3), 2) == 6 * 2
    assert exposed_s(((0, 1), (2, 3)), 4, 0, BlockSeconds(1, 3), 2) == 8 * 2


def test_blocks_of_a_unit_are_recomputed_one_after_another_before_any_goes_back() -> None:
    block = BlockSeconds(forward_s=2, backward_s=7)
    assert list(parts_of_pass(((0, 1), (2,)), [block, BlockSeconds(1, 3)], {1, 2})) == [
        PassPart(None, 1), PassPart(1, 1), PassPart(2, 1),
        PassPart(2, 1), PassPart(None, 2), PassPart(None, 1), PassPart(1, 1), PassPart(None, 5),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(200))
def test_more_ahead_is_never_slower_and_a_slower_bus_never_faster(seed: int) -> None:
    draw = random.Random(seed)
    num_units, width = draw.randint(1, 8), draw.randint(1, 3)
    units = tuple(tuple(range(first * width, (first + 1) * width)) for first in range(num_units))
    seconds = []
    for _ in units:
        forward_s = draw.random()
        seconds.append(BlockSeconds(forward_s, forward_s * draw.uniform(1, 4)))
    copy_s = [draw.random() for _ in range(num_units * width)]
    num_swapped = draw.randint(1, num_units * width)

    def waits_s(prefetch: int, factor: float = 1.0) -> tuple[SwapSchedule, float]:
        schedule = swap_schedule(units, num_swapped, prefetch)
        slowed = {block: factor * copy_s[block] for block in schedule.forward}
        return schedule, exposed_copy_s(parts_of_pass(units, seconds, set(schedule.forward)), schedule, slowed)

    all_s = 2 * sum(copy_s[block] for block in waits_s(0)[0].forward)
    assert waits_s(0)[1] == pytest.approx(all_s)
    exposed = [waits_s(prefetch)[1] for prefetch in range(5)]
    assert all(more <= fewer + 1e-9 for fewer, more in pairwise(exposed))
    for prefetch in (0, 1, 3):
        schedule, waited_s = waits_s(prefetch)
        assert copy_s[schedule.forward[0]] - 1e-9 <= waited_s, "nothing hides the first copy"
        assert waited_s <= waits_s(prefetch, 1.5)[1] + 1e-9
        copies_s = sum(copy_s[stay.block] for stay in schedule.residences())
        assert waited_s <= copies_s + 1e-9


MODEL = "dit-xl-2-256"
NUM_BLOCKS = 28
BLOCK_BYTES = 2e10
"""2 s over the link of `EvenSpeed`."""


def swapping_trace() -> StepTrace:
    """Each block takes a second forward and, recomputed, three back; its frozen weights take 2 s to copy."""
    weights = Storage(Moment(0), Moment(NEVER), growth=0, category=0)
    return StepTrace(
        model=MODEL,
        method="lora",
        precision="bf16",
        checkpointing=1.0,
        numerics="cuda",
        phases=("setup", "forward", "backward", "optimizer"),
        backward_phases=(2,),
        categories=("frozen weights",),
        growths=(flat(BLOCK_BYTES),),
        outside=(),
        kinds=(BlockKind(name="block", count=NUM_BLOCKS, first=(), middle=(weights,), last=()),),
        work=(product("forward", 0, 1.0), product("backward", 0, 3.0)),
        made_with={},
        made_from="hand",
    )


def step_of(num_swapped: int, prefetch: int, *, passes: int = 1, speed: EvenSpeed | None = None) -> StepSeconds:
    levers = {"gradient_checkpointing": 1.0, "block_swap": num_swapped, "block_swap_prefetch": prefetch}
    asked: dict[str, Any] = {"model": MODEL, "method": {"kind": "lora"}, "data": {"kind": "shapes"}, "levers": levers}
    experiment = Experiment.model_validate({**asked, "train": {"steps": 1, "gradient_accumulation": passes}})
    size = StepSize(batch_size=1, height_px=256, width_px=256, num_frames=1, num_text_tokens=0, rank=16)
    swapped_bytes = round(passes * 2 * num_swapped * BLOCK_BYTES)
    step = TimedStep(
        experiment=experiment,
        size=size,
        geometry=geometries()[MODEL],
        moved=Moved(to_host_bytes=10**10, to_device_bytes=swapped_bytes, swapped_bytes=swapped_bytes),
    )
    found = Traces()
    found._found[StepForm.of(experiment, is_checkpointed=True).slug()] = swapping_trace()
    return step_seconds(step, found, speed or EvenSpeed(), WorkTimes(), TimeConstants(products=1, host=1))


def test_a_step_names_what_it_waits_for() -> None:
    """14 of 28 blocks, every second: a block and the one behind it take as long as a copy, so that a pass waits for one
    copy; and a step for a second of what goes to the host.
    """
    computing_s = NUM_BLOCKS * 4
    found = step_of(14, 1, passes=2)
    assert found.bus_s == pytest.approx(1 + 2 * 2)
    assert found.hidden_copy_s == pytest.approx(2 * (27 - 1) * 2), "the last block stays for the backward pass"
    assert found.step_s == pytest.approx(2 * computing_s + 5)
    assert found.shares()["bus"] == pytest.approx(found.bus_s / found.step_s)


def test_without_prefetching_a_step_takes_the_sum() -> None:
    found = step_of(14, 0)
    assert found.bus_s == pytest.approx(1 + 28 * 2)
    assert found.hidden_copy_s == pytest.approx(0)
    assert found.step_s == pytest.approx(NUM_BLOCKS * 4 + 1 + 28 * 2)


def test_a_step_without_swapped_blocks_hides_nothing() -> None:
    found = step_of(0, 1)
    assert found.bus_s == pytest.approx(1)
    assert found.hidden_copy_s == 0
