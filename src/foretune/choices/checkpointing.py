"""Which of the repeated blocks a share of them is: training and planning ask the same function."""


def chosen_blocks(num_blocks: int, share: float) -> tuple[int, ...]:
    """Which blocks are computed again: the share of them, spread evenly, the last one first to be chosen."""
    return tuple(i for i in range(num_blocks) if int((i + 1) * share + 1e-9) > int(i * share + 1e-9))
