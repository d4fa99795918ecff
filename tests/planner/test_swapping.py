"""Blocks whose weights are on the host: by hand."""

import pytest

from foretune.core.errors import Refused
from foretune.core.values.step_trace import NEVER, BlockKind, Growth, Moment, StepTrace, Storage
from foretune.core.vocabulary import MemoryPart
from foretune.planner.block_events import Event, Variant
from foretune.planner.expansion import expand_variant
from foretune.planner.live_memory import find_peak
from foretune.planner.streams import device_events, host_events, lasting_only
from foretune.planner.swapping import SwappedUnit, moved_bytes, swapped_units

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


def swapped_step(*numbers: int) -> list[Event]:
    units = tuple(SwappedUnit(number, 1, 1) for number in numbers)
    return expand_variant(AGAIN, AGAIN, ONE, Variant(chosen=frozenset(range(4)), swapped=units))


def test_weights_are_on_the_host_and_come_for_the_block_that_runs() -> None:
    events = swapped_step(0, 2)
    assert sum(event.num_bytes for event in lasting_only(host_events(events))) == 2 * WEIGHTS
    device = device_events(events)
    assert sum(event.num_bytes for event in lasting_only(device)) == 2 * WEIGHTS
    peak = find_peak(device)
    # Two blocks stay, one is brought, and at the end of the forward pass all inputs are there.
    assert peak.by_category == {
        "frozen weights": 2 * WEIGHTS,
        MemoryPart.SWAPPED_WEIGHTS: WEIGHTS,
        "activations": 3 * INPUT_BYTES,
    }
    brought = [event for event in device if event.category == MemoryPart.SWAPPED_WEIGHTS and event.num_bytes]
    assert [(event.num_bytes, event.phase) for event in brought] == [
        (WEIGHTS, "forward"), (WEIGHTS, "forward"), (WEIGHTS, "backward"), (WEIGHTS, "backward"),
    ]  # fmt: skip


def test_never_more_than_one_block_is_brought() -> None:
    brought = [e for e in swapped_step(0, 1, 2, 3) if e.category == MemoryPart.SWAPPED_WEIGHTS]
    assert find_peak(brought).num_bytes == WEIGHTS


def test_of_a_unit_only_the_blocks_that_were_chosen() -> None:
    """Two of the three blocks of a unit: forward one after another, backward both at once."""
    unit = (SwappedUnit(1, 2, 3),)
    events = expand_variant(AGAIN, AGAIN, ONE, Variant(chosen=frozenset(range(4)), swapped=unit))
    one_block = WEIGHTS // 3
    assert [event.num_bytes for event in host_events(events)] == [2 * one_block]
    brought = [event for event in events if event.category == MemoryPart.SWAPPED_WEIGHTS and event.num_bytes]
    assert [(event.num_bytes, event.phase) for event in brought] == [
        (one_block, "forward"),
        (2 * one_block, "backward"),
    ]


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
    found = swapped_units(units, num_swapped)
    assert [(unit.number, unit.num_swapped, unit.num_blocks) for unit in found] == expected


def test_more_blocks_than_there_are() -> None:
    with pytest.raises(Refused, match=r"this model has 2\. Nearest: levers\.block_swap=2"):
        swapped_units(((0,), (1,)), 3)


def test_bytes_of_what_is_moved() -> None:
    assert moved_bytes(AGAIN, ONE, [SwappedUnit(0, 1, 1), SwappedUnit(3, 1, 2)]) == [WEIGHTS, WEIGHTS // 2]
