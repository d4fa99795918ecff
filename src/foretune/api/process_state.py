"""What a verb may change of torch while it works; the caller gets back what it had."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_kept() -> Iterator[None]:
    """Puts the number of torch's threads and the states of its random number generators back afterwards."""
    import torch

    before = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        torch.set_num_threads(before)
