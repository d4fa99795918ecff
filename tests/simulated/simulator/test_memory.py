"""The caching allocator against numbers by hand, limits, and allocations that fail on demand."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import HANG_S

pytestmark = pytest.mark.simulated

KIB, MIB = 2**10, 2**20
ROUNDING = 512


@pytest.fixture
def empty_device(simulated_gpu: Any) -> Iterator[Any]:
    """Device 1, which no other test leaves memory on."""
    import torch

    with torch.cuda.device(1):
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        yield simulated_gpu
        simulated_gpu.set_limit(torch.cuda.get_device_properties(1).total_memory)
        simulated_gpu.fail_allocation(0)
        torch.cuda.empty_cache()


def allocated(num_bytes: int) -> Any:
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


def memory() -> tuple[int, int]:
    import torch

    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


@pytest.mark.parametrize(
    ("num_bytes", "allocated_bytes", "reserved_bytes"),
    [
        (1, ROUNDING, 2 * MIB),
        (512, ROUNDING, 2 * MIB),
        (513, 2 * ROUNDING, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + ROUNDING, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # A rest of at most 1 MiB is not split off.
        (11 * MIB, 12 * MIB, 12 * MIB),
        (12 * MIB + 1, 12 * MIB + ROUNDING, 14 * MIB),
    ],
)
def test_sizes_are_rounded_as_by_torch(
    empty_device: Any, num_bytes: int, allocated_bytes: int, reserved_bytes: int
) -> None:
    tensor = allocated(num_bytes)
    assert memory() == (allocated_bytes, reserved_bytes)
    del tensor
    assert memory() == (0, reserved_bytes)


def test_a_rest_of_more_than_a_mebibyte_is_split_off(empty_device: Any) -> None:
    tensor = allocated(19 * MIB)
    assert memory() == (20 * MIB, 20 * MIB)
    del tensor
    smaller = allocated(18 * MIB)
    assert memory() == (18 * MIB, 20 * MIB)
    del smaller


def test_segments_are_split_and_merged(empty_device: Any) -> None:
    import torch

    first, second = allocated(5 * MIB), allocated(5 * MIB)
    assert memory() == (10 * MIB, 20 * MIB)
    stats = torch.cuda.memory_stats()
    assert stats["segment.all.current"] == 1
    assert stats["inactive_split_bytes.all.current"] == 10 * MIB
    del first, second
    # Only a merged segment has room for this.
    assert allocated(18 * MIB).numel() == 18 * MIB
    assert torch.cuda.memory_reserved() == 20 * MIB
    assert torch.cuda.memory_stats()["num_device_alloc"] - stats["num_device_alloc"] == 0


def test_the_smallest_block_that_fits_is_used(empty_device: Any) -> None:
    blocks = [allocated(num_bytes * MIB) for num_bytes in (30, 12, 40)]
    addresses = [block.data_ptr() for block in blocks]
    del blocks
    assert allocated(11 * MIB).data_ptr() == addresses[1]


def test_a_stream_does_not_get_cached_blocks_of_another(empty_device: Any) -> None:
    import torch

    address = allocated(MIB).data_ptr()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert allocated(MIB).data_ptr() != address
    assert allocated(MIB).data_ptr() == address
    torch.cuda.synchronize()


def test_peaks_and_totals_are_counted(empty_device: Any) -> None:
    import torch

    tensor = allocated(3 * MIB)
    del tensor
    assert torch.cuda.max_memory_allocated() == 3 * MIB
    assert torch.cuda.max_memory_reserved() == 20 * MIB
    second = allocated(2 * MIB)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 2 * MIB
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == 5 * MIB
    assert stats["allocated_bytes.all.freed"] == 3 * MIB
    assert stats["requested_bytes.large_pool.current"] == 2 * MIB
    assert stats == {**stats, **{f"oversize_segments.{name}": 0 for name in ("current", "peak")}}
    assert "Allocated memory" in torch.cuda.memory_summary()
    del second


def test_cached_memory_is_given_back(empty_device: Any) -> None:
    import torch

    tensor = allocated(3 * MIB)
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    assert total_bytes == torch.cuda.get_device_properties(1).total_memory
    assert free_bytes == total_bytes - 20 * MIB
    torch.cuda.empty_cache()
    assert memory() == (3 * MIB, 20 * MIB)
    del tensor
    torch.cuda.empty_cache()
    assert memory() == (0, 0)


def test_memory_that_was_recorded_on_a_stream_is_held_back(empty_device: Any) -> None:
    import torch

    side = torch.cuda.Stream()
    tensor = allocated(MIB)
    address = tensor.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        tensor.fill_(1)
    tensor.record_stream(side)
    del tensor
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == MIB
    assert allocated(MIB).data_ptr() != address
    side.synchronize()
    assert allocated(MIB).data_ptr() == address


def test_new_memory_holds_no_usable_numbers(empty_device: Any) -> None:
    import torch

    assert torch.empty(8, device="cuda").isnan().all().item()


def test_a_device_runs_out_of_memory_at_its_limit(empty_device: Any) -> None:
    import torch

    empty_device.set_limit(64 * MIB, 1)
    tensor = allocated(40 * MIB)
    with pytest.raises(
        torch.OutOfMemoryError, match=r"Tried to allocate 30.00 MiB. GPU 1 has a total capacity of"
    ) as raised:
        allocated(30 * MIB)
    assert "of which 24.00 MiB is free. Of the allocated memory 40.00 MiB is allocated by PyTorch" in str(raised.value)
    assert torch.cuda.memory_stats()["num_ooms"] >= 1
    assert allocated(24 * MIB).numel() == 24 * MIB
    del tensor
    # Cached blocks that do not fit are given back before an allocation fails.
    assert allocated(60 * MIB).numel() == 60 * MIB
    assert torch.ones(1, device="cuda:0").item() == 1


def test_a_fraction_limits_one_device(empty_device: Any) -> None:
    import torch

    total_bytes = torch.cuda.get_device_properties(1).total_memory
    torch.cuda.set_per_process_memory_fraction(0.5, 1)
    with pytest.raises(torch.OutOfMemoryError):
        allocated(total_bytes // 2 + 1)
    assert empty_device.limit(0) == total_bytes
    assert empty_device.limit(1) == total_bytes // 2


def test_the_nth_allocation_fails_on_demand(empty_device: Any) -> None:
    import torch

    empty_device.fail_allocation(3)
    kept = [allocated(KIB), allocated(KIB)]
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        allocated(KIB)
    kept.append(allocated(KIB))
    assert torch.cuda.memory_allocated() == 3 * KIB


def test_copies_of_a_process_have_memory_of_their_own() -> None:
    """Two processes see one device, each writes to the first block of its memory, and then both read."""
    program = """
import os
import torch
wrote, reads, answers = os.pipe(), os.pipe(), os.pipe()
for value in (1.0, 2.0):
    if os.fork() == 0:
        tensor = torch.full((2,), value, device="cuda")
        os.write(wrote[1], b" ")
        os.read(reads[0], 1)
        os.write(answers[1], f"{tensor.tolist() == [value] * 2}\\n".encode())
        os._exit(0)
for _ in range(2):
    os.read(wrote[0], 1)
os.write(reads[1], b"  ")
for _ in range(2):
    os.wait()
print(os.read(answers[0], 100).decode())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr
