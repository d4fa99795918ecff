"""Tests of Foretune on the simulated GPU: `SIMACCEL=cuda pytest -m simulated`."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def simulated_gpu() -> Iterator[Any]:
    """The simulated device, without findings of earlier tests; fails the test that leaves any."""
    import torch

    import simaccel

    device = simaccel.device
    assert device is not None, "the marker `simulated` is missing"
    torch.cuda.synchronize()
    device.findings(True)
    device.syncs(True)
    yield device
    torch.cuda.synchronize()
    findings = device.findings(True)
    assert not findings, "\n\n".join(findings)
