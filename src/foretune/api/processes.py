"""Which process of a run this is, where a launcher such as torchrun started several."""


def later_rank() -> int | None:
    """The rank of this process, if another one is the first of its run and reports for all of them."""
    from foretune.training.ranks import found_ranks

    found = found_ranks()
    return None if found is None or found.is_first else found.rank
