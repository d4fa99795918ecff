"""Which of the repeated blocks have their weights on the host: training and planning ask the same function."""


def chosen_to_swap(num_blocks: int, num_swapped: int) -> tuple[int, ...]:
    """So many of the blocks, spread evenly: of each kind about its share, and between two of them others run."""
    assert 0 <= num_swapped <= num_blocks
    return tuple(i for i in range(num_blocks) if (i + 1) * num_swapped // num_blocks > i * num_swapped // num_blocks)
