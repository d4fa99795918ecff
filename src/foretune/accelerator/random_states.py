"""States of the random number generators of all devices."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def restored_random_states() -> Iterator[None]:
    """Restores the states of the generators of the CPU and all accelerators at its end."""
    # fork_rng does not know MPS: torch.mps has one device, and its functions take no index.
    state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        if state is not None:
            torch.mps.set_rng_state(state)
