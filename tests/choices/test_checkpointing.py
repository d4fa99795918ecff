"""Which blocks are computed again, together with which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.choices.checkpointing import chosen_segments, segments
from foretune.choices.training import Levers


@pytest.mark.parametrize(
    ("levers", "expected"),
    [
        ({}, ()),
        ({"gradient_checkpointing": 1}, ((0,), (1,), (2,), (3,), (4,), (5,), (6,))),
        ({"gradient_checkpointing": 1, "checkpoint_segment": 2}, ((0, 1), (2, 3), (4,), (5, 6))),
        ({"gradient_checkpointing": 0.5, "checkpoint_segment": 2}, ((2, 3), (5, 6))),
        ({"gradient_checkpointing": 1, "checkpoint_segment": 9}, ((0, 1, 2, 3, 4), (5, 6))),
        ({"gradient_checkpointing": 1, "checkpoint_stride": 2}, ((0,), (2,), (4,), (5,))),
        ({"gradient_checkpointing": 1, "checkpoint_stride": 3, "checkpoint_segment": 2}, ((0, 1), (3, 4), (5, 6))),
        ({"gradient_checkpointing": 1, "checkpoint_stride": 4, "checkpoint_segment": 3}, ((0, 1, 2), (4,), (5, 6))),
    ],
)
def test_segments_of_two_stacks_by_hand(levers: dict[str, float], expected: tuple[tuple[int, ...], ...]) -> None:
    assert chosen_segments((5, 2), Levers.model_validate(levers)) == expected


@given(stacks=st.lists(st.integers(0, 40), max_size=3).map(tuple), width=st.integers(1, 9), more=st.integers(0, 9))
def test_no_segment_crosses_a_stack_or_another_segment(stacks: tuple[int, ...], width: int, more: int) -> None:
    ends = {sum(stacks[: index + 1]) for index in range(len(stacks))}
    found = segments(stacks, width, width + more)
    blocks = [block for segment in found for block in segment]
    assert blocks == sorted(set(blocks))
    for segment in found:
        assert 1 <= len(segment) <= width
        assert segment == tuple(range(segment[0], segment[-1] + 1))
        assert not any(segment[0] < end <= segment[-1] for end in ends)
    if more == 0:
        assert blocks == list(range(sum(stacks)))
