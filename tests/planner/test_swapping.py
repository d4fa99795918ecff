"""Blocks whose weights are on the host: by hand."""

import pytest

from foretune.core.errors import Refused
from foretune.core.values.step_trace import NEVER, BlockKind, Growth, Moment, StepTrace, Storage
from foretune.core.vocabulary import MemoryPart
from foretune.planner.block_events import Event, Variant
from foretune.planner.expansion import expand_variant
from foretune.planner.live_memory import find_peak
from foretune.planner.streams import device_events, host_events, lasting_only
from foretune.planner.swapping import (
    Stay,
    SwappedUnit,
    copied_bytes,
    most_on_device_bytes,
    moved_bytes,
    swapped_units,
)

SETUP, FORWARD, BACKWARD = range(3)
ONE = (1.0, 1.0, 1.0, 1.0)
WEIGHTS, INPUT_BYTES = 1000, 20


def made_trace(count: int = 4) -> StepTrace:
    """Each block has 1000 bytes of frozen weights and keeps its input of 20 bytes."""
    block = (
        Storage(made=Moment(phase=SETUP), released=Moment(phase=NEVER), growth=0, category=0),
        Storage(
            made=Moment(phase=FORWARD, block="own", position=1),
            released=Moment(phase=BACKWARD, block="own", position=9),
            growth=1,
            category=1,
        ),
    )
    return StepTrace(
        model="made",
        method="lora",
        precision="bf16",
        checkpointing=1.0,
        numerics="cuda",
        phases=("setup", "forward", "backward"),
        backward_phases=(BACKWARD,),
        categories=("frozen weights", "activations"),
        growths=tuple(Growth(terms=((float(size), (0, 0, 0, 0)),)) for size in (WEIGHTS, INPUT_BYTES)),
        outside=(),
        kinds=(BlockKind(name="kind 0", count=count, first=(), middle=block, last=()),),
        made_with={},
        made_from="",
    )


AGAIN = made_trace()


EACH = ((0,), (1,), (2,), (3,))


def swapped_step(num_swapped: int, prefetch: int, units: tuple[tuple[int, ...], ...] = EACH) -> list[Event]:
    variant = Variant(chosen=frozenset(range(4)), swapped=swapped_units(units, num_swapped, prefetch))
    return expand_variant(AGAIN, AGAIN, ONE, variant)


def copied(events: list[Event]) -> list[Event]:
    return [event for event in events if event.category == MemoryPart.SWAPPED_WEIGHTS]


def test_weights_are_on_the_host_and_come_for_the_block_that_runs() -> None:
    events = swapped_step(2, 0)
    assert sum(event.num_bytes for event in lasting_only(host_events(events))) == 2 * WEIGHTS
    device = device_events(events)
    assert sum(event.num_bytes for event in lasting_only(device)) == 2 * WEIGHTS
    peak = find_peak(device)
    # Two blocks stay, one is copied, and at the end of the forward pass all inputs are there.
    assert peak.by_category == {
        "frozen weights": 2 * WEIGHTS,
        MemoryPart.SWAPPED_WEIGHTS: WEIGHTS,
        "activations": 4 * INPUT_BYTES,
    }
    assert [(event.num_bytes, event.phase) for event in copied(device) if event.num_bytes] == [
        (WEIGHTS, "forward"), (WEIGHTS, "forward"), (WEIGHTS, "backward"), (WEIGHTS, "backward"),
    ]  # fmt: skip


@pytest.mark.parametrize("prefetch", [0, 1, 2, 3])
def test_the_running_block_and_those_copied_ahead_are_on_the_device(prefetch: int) -> None:
    assert find_peak(copied(swapped_step(4, prefetch))).num_bytes == (prefetch + 1) * WEIGHTS


def test_a_copy_lies_beside_the_block_before_it_and_the_last_one_stays() -> None:
    """Blocks 1 and 3: 3 is copied when 1 begins and stays for the backward pass, in which 1 is copied when 3 begins."""
    first, last = swapped_units(EACH, 2, 1)
    assert first.stays == (
        Stay("forward", 1, False, "forward", 1),
        Stay("backward", 3, False, "backward", 1),
    )
    assert last.stays == (Stay("forward", 1, False, "backward", 3),)
    assert (first.num_copies, last.num_copies) == (2, 1)
    live, seen = 0, []
    for event in copied(swapped_step(2, 1)):
        live += 1 if event.num_bytes else -1
        seen.append((event.phase, live))
    assert seen == [
        ("forward", 1), ("forward", 2), ("forward", 1), ("backward", 2), ("backward", 1), ("backward", 0),
    ]  # fmt: skip


def test_of_a_unit_only_the_blocks_that_were_chosen() -> None:
    """Two of the three blocks of a unit: forward one after another, backward both at once."""
    two_of_three = ((0, 1, 2),)
    trace = made_trace(1)
    variant = Variant(chosen=frozenset({0}), swapped=swapped_units(two_of_three, 2, 0))
    events = expand_variant(trace, trace, ONE, variant)
    one_block = WEIGHTS // 3
    assert [event.num_bytes for event in host_events(events)] == [2 * one_block]
    assert [(event.num_bytes, event.phase) for event in copied(events) if event.num_bytes] == [
        (one_block, "forward"),
        (one_block, "backward"),
        (one_block, "backward"),
    ]
    assert copied_bytes(trace, ONE, variant.swapped) == 4 * one_block, "the second copy takes the place of the first"


@pytest.mark.parametrize(("prefetch", "forward", "backward"), [(0, 1, 2), (1, 2, 3), (2, 3, 4)])
def test_of_units_of_two_blocks(prefetch: int, forward: int, backward: int) -> None:
    """Forward, a block takes the place of one that has run; backward, the two of a unit are there together."""
    trace = made_trace(3)
    variant = Variant(chosen=frozenset(range(3)), swapped=swapped_units(((0, 1), (2, 3), (4, 5)), 6, prefetch))
    events = copied(expand_variant(trace, trace, ONE, variant))
    turn = next(index for index, event in enumerate(events) if event.phase == "backward")
    assert find_peak(events[:turn]).num_bytes == forward * WEIGHTS // 2
    assert find_peak(events).num_bytes == backward * WEIGHTS // 2


@pytest.mark.parametrize(
    ("units", "num_swapped", "expected"),
    [
        (((0,), (1,), (2,), (3,)), 2, [(1, 1, 1), (3, 1, 1)]),
        (((0, 1), (2, 3)), 2, [(0, 1, 2), (1, 1, 2)]),
        (((0, 1), (2,)), 3, [(0, 2, 2), (1, 1, 1)]),
        (((0,), (1,)), 0, []),
    ],
)
def test_units_hold_the_blocks_that_training_chooses(
    units: tuple[tuple[int, ...], ...], num_swapped: int, expected: list[tuple[int, int, int]]
) -> None:
    found = swapped_units(units, num_swapped, 1)
    assert [(unit.number, unit.num_swapped, unit.num_blocks) for unit in found] == expected


def test_more_blocks_than_there_are() -> None:
    with pytest.raises(Refused, match=r"this model has 2\. Nearest: levers\.block_swap=2"):
        swapped_units(((0,), (1,)), 3, 1)


def test_bytes_of_what_is_moved() -> None:
    assert moved_bytes(AGAIN, ONE, [SwappedUnit(0, 1, 1), SwappedUnit(3, 1, 2)]) == [WEIGHTS, WEIGHTS // 2]


def test_bytes_of_what_is_copied_in_a_pass() -> None:
    """Each block for the forward and for the backward pass; with prefetching the last one is copied once."""
    assert [copied_bytes(AGAIN, ONE, swapped_units(EACH, 3, prefetch)) for prefetch in (0, 1, 2, 3, 9)] == [
        6 * WEIGHTS, 5 * WEIGHTS, 5 * WEIGHTS, 4 * WEIGHTS, 3 * WEIGHTS,
    ]  # fmt: skip


def test_the_most_that_a_forward_pass_has_on_the_device() -> None:
    units = swapped_units(((0,), (1, 2), (3,)), 4, 0)
    moved = [5, 20, 30]
    assert [most_on_device_bytes(moved, units, prefetch) for prefetch in (0, 1, 2, 9)] == [30, 40, 50, 55]
    assert most_on_device_bytes([], (), 1) == 0
