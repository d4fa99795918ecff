"""The device that is waited for is the one that is named, whichever is the current one."""

from typing import Any

import pytest
import torch

from foretune.accelerator.copies import wait_for_copies
from foretune.accelerator.timing import wait_for

pytestmark = pytest.mark.simulated


@pytest.mark.parametrize("wait", [wait_for, wait_for_copies])
@pytest.mark.parametrize("index", [0, 1])
def test_the_work_of_the_named_device_is_complete(simulated_gpu: Any, wait: Any, index: int) -> None:
    device = torch.device("cuda", index)
    done = torch.Event(device=device)
    torch.ones(4, device=device)
    with torch.cuda.device(device):
        done.record()
    wait(device)
    assert done.query()
