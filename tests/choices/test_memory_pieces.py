import random

import pytest

from foretune.choices.memory_pieces import aligned, averaged_copies_bytes, averaged_group_bytes, page_locked_blocks
from foretune.core.units import GIB, MIB

_HIDDEN = 3072
_SQUARE = 2 * _HIDDEN**2
"""Bytes of a bf16 matrix of FLUX.1."""
FLUX_SINGLE_BLOCK = [3 * _SQUARE, 4 * _SQUARE, *[_SQUARE] * 3, 5 * _SQUARE, *[2 * _HIDDEN] * 5]


@pytest.mark.parametrize("seed", range(20))
def test_each_tensor_has_a_place_of_its_own(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randrange(1 << draw.randrange(31)) for _ in range(draw.randrange(40))]
    blocks = page_locked_blocks(sizes)
    assert sorted(index for block in blocks for index in block.tensors) == list(range(len(sizes)))
    for block in blocks:
        assert block.num_bytes.bit_count() == 1, "torch would round it up"
        assert sum(aligned(sizes[index]) for index in block.tensors) <= block.num_bytes
        assert block.num_bytes <= max(GIB, 2 * max(sizes))


@pytest.mark.parametrize("num_blocks", [1, 5, 38])
def test_blocks_of_a_model_are_nearly_full(num_blocks: int) -> None:
    sizes = FLUX_SINGLE_BLOCK * num_blocks
    single = sum(1 << (size - 1).bit_length() for size in sizes)
    assert single > 1.5 * sum(sizes)
    assert sum(block.num_bytes for block in page_locked_blocks(sizes)) < 1.1 * sum(sizes)


def test_an_average_on_the_host_waits_a_bounded_number_of_times_and_holds_little() -> None:
    assert averaged_copies_bytes(10 * MIB) == 10 * MIB
    for num_bytes in (10 * MIB, GIB, 24 * GIB):
        assert num_bytes / averaged_group_bytes(num_bytes) <= 16
        assert averaged_copies_bytes(num_bytes) <= max(128 * MIB, num_bytes / 8 + 2)
