"""Page-locked memory: early uses by the host, reuse of freed blocks, rounding, statistics and the limit."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import simaccel
from tests.simulated.simulator.programs import findings_of

pytestmark = [pytest.mark.simulated, pytest.mark.usefixtures("simulated_gpu")]

NUM_ITEMS = 1000
BLOCK_BYTES = 4096
"""4,000 bytes of 1,000 floats, rounded up to a power of two."""


def host_reads_a_copy(is_correct: bool) -> object:
    import torch

    target = torch.empty(NUM_ITEMS, pin_memory=True)
    target.copy_(torch.ones(NUM_ITEMS, device="cuda"), non_blocking=True)
    if is_correct:
        torch.cuda.current_stream().synchronize()
    return target.sum()


def host_reads_after_an_event_before_the_copy(is_correct: bool) -> object:
    import torch

    source = torch.ones(NUM_ITEMS, device="cuda")
    target = torch.empty(NUM_ITEMS, pin_memory=True)
    early = torch.cuda.current_stream().record_event()
    target.copy_(source, non_blocking=True)
    late = torch.cuda.current_stream().record_event()
    (late if is_correct else early).synchronize()
    return target.sum()


def host_reads_after_a_query(is_correct: bool) -> object:
    import torch

    target = torch.empty(NUM_ITEMS, pin_memory=True)
    target.copy_(torch.ones(NUM_ITEMS, device="cuda"), non_blocking=True)
    event = torch.cuda.current_stream().record_event()
    while not event.query() and is_correct:
        pass
    return target.sum()


def host_overwrites_what_is_copied(is_correct: bool) -> object:
    import torch

    source = torch.ones(NUM_ITEMS).pin_memory()
    copy = source.to("cuda", non_blocking=True)
    if is_correct:
        torch.cuda.synchronize()
    source.zero_()
    return copy


def two_streams_copy_to_one_buffer(is_correct: bool) -> object:
    import torch

    side = torch.cuda.Stream()
    target = torch.empty(NUM_ITEMS, pin_memory=True)
    ones, twos = torch.ones(NUM_ITEMS, device="cuda"), torch.full((NUM_ITEMS,), 2.0, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    target.copy_(ones, non_blocking=True)
    if is_correct:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        target.copy_(twos, non_blocking=True)
    side.synchronize()
    torch.cuda.synchronize()
    return target


def a_buffer_is_filled_and_sent_on_two_streams(is_correct: bool) -> object:
    import torch

    side = torch.cuda.Stream()
    buffer = torch.empty(NUM_ITEMS, pin_memory=True)
    target = torch.zeros(NUM_ITEMS, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    buffer.copy_(torch.ones(NUM_ITEMS, device="cuda"), non_blocking=True)
    if is_correct:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        target.copy_(buffer, non_blocking=True)
    torch.cuda.synchronize()
    return target


@pytest.mark.parametrize(
    "program",
    [
        host_reads_a_copy,
        host_reads_after_an_event_before_the_copy,
        host_reads_after_a_query,
        host_overwrites_what_is_copied,
        two_streams_copy_to_one_buffer,
        a_buffer_is_filled_and_sent_on_two_streams,
    ],
    ids=lambda program: program.__name__,
)
def test_only_the_wrong_twin_is_reported(program: Callable[[bool], object]) -> None:
    assert findings_of(lambda: program(True)) == []
    findings = findings_of(lambda: program(False))
    assert any("page-locked memory" in finding for finding in findings)


def test_a_copy_through_a_buffer_arrives_and_the_buffer_stays_closed_to_the_host() -> None:
    import torch

    buffer = torch.empty(NUM_ITEMS, pin_memory=True)
    target = torch.zeros(NUM_ITEMS, device="cuda")
    buffer.copy_(torch.ones(NUM_ITEMS, device="cuda"), non_blocking=True)
    target.copy_(buffer, non_blocking=True)
    assert torch.equal(target.cpu(), torch.ones(NUM_ITEMS))

    def early() -> None:
        buffer.copy_(target, non_blocking=True)
        target.copy_(buffer, non_blocking=True)
        buffer.sum()

    assert len(findings_of(early)) == 1


def test_an_early_read_gets_other_numbers_and_names_both_places(simulated_gpu: Any) -> None:
    import torch

    target = torch.zeros(4, pin_memory=True)
    simulated_gpu.set_log_only(True)
    target.copy_(torch.ones(4, device="cuda"), non_blocking=True)
    early = target.isnan().tolist()
    torch.cuda.synchronize()
    simulated_gpu.set_log_only(False)
    (finding,) = simaccel.findings(clear=True)
    assert early == [True] * 4
    assert target.tolist() == [1] * 4
    host, copy = finding.split("the copy was started at")
    assert "test_page_locked_memory.py" in host
    assert "test_page_locked_memory.py" in copy


@pytest.fixture
def empty_cache(simulated_gpu: Any) -> Iterator[Any]:
    import torch

    torch.cuda.synchronize()
    for _ in range(2):  # an event that was not ready is looked at again
        simulated_gpu.free_page_locked_cache()
    torch.cuda.reset_peak_host_memory_stats()
    yield simulated_gpu
    simulated_gpu.set_pinned_limit(2**63)


def test_blocks_are_powers_of_two_and_are_used_again(empty_cache: Any) -> None:
    import torch

    def figure(name: str) -> int:
        return int(torch.cuda.host_memory_stats()[name])

    owned, active = figure("allocated_bytes.current"), figure("active_bytes.current")
    first = torch.empty(NUM_ITEMS, pin_memory=True)
    assert figure("allocated_bytes.current") - owned == BLOCK_BYTES
    assert figure("active_bytes.current") - active == BLOCK_BYTES
    address = first.data_ptr()
    del first
    assert figure("allocated_bytes.current") - owned == BLOCK_BYTES
    assert figure("active_bytes.current") == active
    assert torch.empty(NUM_ITEMS - 100, pin_memory=True).data_ptr() == address


def test_a_freed_block_is_held_back_until_its_copies_are_done(empty_cache: Any) -> None:
    import torch

    source = torch.ones(NUM_ITEMS).pin_memory()
    address = source.data_ptr()
    copy = source.to("cuda", non_blocking=True)
    del source
    other = torch.zeros(NUM_ITEMS, pin_memory=True)
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    assert torch.empty(NUM_ITEMS, pin_memory=True).data_ptr() == address
    assert torch.equal(copy.cpu(), torch.ones(NUM_ITEMS))


def test_more_than_the_limit_cannot_be_page_locked(empty_cache: Any) -> None:
    import torch

    owned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    empty_cache.set_pinned_limit(owned + 2 * BLOCK_BYTES)
    first, second = (torch.empty(NUM_ITEMS, pin_memory=True) for _ in range(2))
    with pytest.raises(torch.AcceleratorError, match="CUDA error: out of memory"):
        torch.empty(NUM_ITEMS, pin_memory=True)
    # A freed block is used again; another size cannot have it.
    del first
    third = torch.empty(NUM_ITEMS, pin_memory=True)
    assert third.is_pinned()
    assert second.is_pinned()


_EARLY_READ = """
import torch, faulthandler, simaccel
faulthandler.enable()
simaccel.device.set_log_only(True)
target = torch.empty(1000, pin_memory=True)
target.copy_(torch.ones(1000, device="cuda"), non_blocking=True)
target.sum()
torch.cuda.synchronize()
print(len(simaccel.findings()))
"""


def test_early_reads_are_seen_under_python_s_fault_handler() -> None:
    """It is enabled after torch was imported, as by pytest where a conftest.py imports torch."""
    program = subprocess.run([sys.executable, "-c", _EARLY_READ], capture_output=True, text=True, check=False)
    assert (program.returncode, program.stdout) == (0, "1\n"), program.stderr
