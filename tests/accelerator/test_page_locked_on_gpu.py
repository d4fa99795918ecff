"""Page-locked memory counts as memory of the process: the host's peak has what offload and block swap hold there."""

import pytest
import torch

from foretune.accelerator import page_locked
from foretune.core.units import MIB
from foretune.training.devices import peak_host_bytes

pytestmark = pytest.mark.gpu


def test_page_locked_memory_is_part_of_the_peak() -> None:
    device = torch.device("cuda", 0)
    before = peak_host_bytes()
    held = page_locked.empty(1024 * MIB, device).fill_(1)
    assert page_locked.is_locked(held)
    assert peak_host_bytes() - before > 500 * MIB, "the driver's mapping is not part of the resident set"
