"""What a verb may change of torch while it works; the caller gets back what it had."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_kept() -> Iterator[None]:
    """Puts the number of torch's threads and the states of its random number generators back afterwards.

    Models of earlier calls, which Python frees only when it collects cycles, leave the device first.
    """
    import torch

    from foretune.accelerator.memory import free_memory
    from foretune.accelerator.random_states import restored_random_states

    free_memory()
    before = torch.get_num_threads()
    try:
        with restored_random_states():
            yield
    finally:
        torch.set_num_threads(before)
