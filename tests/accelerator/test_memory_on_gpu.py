"""Peaks that the allocator of a GPU reports, and unused memory that it returns to the device."""

import pytest
import torch

from foretune.accelerator.memory import (
    allocated_bytes,
    free_memory,
    peak_allocated_bytes,
    peak_reserved_bytes,
    reserved_bytes,
    reset_peaks,
)
from foretune.core.units import MIB

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)


def test_peaks_begin_again_at_what_is_in_use() -> None:
    free_memory()
    reset_peaks(CUDA)
    before = [allocated_bytes(CUDA) or 0, reserved_bytes(CUDA) or 0]
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=CUDA)
    assert (allocated_bytes(CUDA) or 0) == before[0] + held.nbytes
    del held
    assert [peak_allocated_bytes(CUDA), peak_reserved_bytes(CUDA)] == [used + 64 * MIB for used in before]
    assert allocated_bytes(CUDA) == before[0]
    free_memory()
    assert peak_reserved_bytes(CUDA) == before[1] + 64 * MIB
    reset_peaks(CUDA)
    assert [peak_allocated_bytes(CUDA), peak_reserved_bytes(CUDA)] == before


def test_unused_memory_is_returned_to_the_device() -> None:
    free_memory()
    before = reserved_bytes(CUDA)
    torch.empty(64 * MIB, dtype=torch.uint8, device=CUDA)
    assert reserved_bytes(CUDA) != before
    free_memory()
    assert reserved_bytes(CUDA) == before
