"""A verb may choose how many threads torch computes with; the caller gets back what it had."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads_kept() -> Iterator[None]:
    """Puts the number of torch's threads back afterwards."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
