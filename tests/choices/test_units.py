"""Units: the blocks of which a step repeats itself, and which of them are computed again."""

import pytest

from foretune.choices.checkpointing import chosen_segments, chosen_units, unit_width, units
from foretune.choices.training import Levers

CASES: tuple[tuple[dict[str, float | int], int, list[int]], ...] = (
    ({"gradient_checkpointing": 0.0}, 1, []),
    ({}, 1, [0, 1, 2, 3, 4, 5, 6]),
    ({"gradient_checkpointing": 0.5}, 1, [1, 3, 5]),
    # Stacks of five and two blocks.
    ({"checkpoint_stride": 4}, 1, [0, 4, 5]),
    ({"checkpoint_segment": 2}, 2, [0, 1, 2, 3]),
    ({"checkpoint_segment": 2, "gradient_checkpointing": 0.5}, 2, [1, 3]),
    ({"checkpoint_segment": 2, "checkpoint_stride": 4}, 2, [0, 2, 3]),
    ({"checkpoint_segment": 2, "checkpoint_stride": 3}, 3, [0, 1, 2]),
)
STACKS = (5, 2)


@pytest.mark.parametrize(("levers", "width", "chosen"), CASES)
def test_units_and_which_are_chosen(levers: dict[str, float | int], width: int, chosen: list[int]) -> None:
    choice = Levers.model_validate({"gradient_checkpointing": 1.0, **levers})
    assert unit_width(choice) == width
    assert list(chosen_units(STACKS, choice)) == chosen
    found = units(STACKS, choice)
    assert [block for unit in found for block in unit] == list(range(7))
    # What training computes again is in the units that are chosen, and begins them.
    segments = chosen_segments(STACKS, choice)
    assert [segment[0] for segment in segments] == [found[number][0] for number in chosen]
    assert all(set(segment) <= set(found[number]) for segment, number in zip(segments, chosen, strict=True))
