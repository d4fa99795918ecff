"""Races on device memory: each program has a correct twin that differs in one line."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulated.simulator.programs import findings_of

pytestmark = [pytest.mark.simulated, pytest.mark.usefixtures("simulated_gpu")]

Program = Callable[[bool], object]
NUM_ITEMS = 1000


@pytest.fixture(autouse=True)
def device_of_tests() -> Iterator[None]:
    import torch

    with torch.cuda.device(0):
        yield


def side_stream_reads(is_correct: bool) -> object:
    import torch

    side = torch.cuda.Stream()
    product = torch.ones(NUM_ITEMS, device="cuda") * 2
    if is_correct:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        total = product + 1
    torch.cuda.current_stream().wait_stream(side)
    return total, product


def result_of_side_stream_is_read(is_correct: bool) -> object:
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = torch.ones(NUM_ITEMS, device="cuda")
        finished = side.record_event()
    if is_correct:
        torch.cuda.current_stream().wait_event(finished)
    return result + 1


def event_is_recorded_too_early(is_correct: bool) -> object:
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        early = side.record_event()
        result = torch.ones(NUM_ITEMS, device="cuda")
        late = side.record_event()
    torch.cuda.current_stream().wait_event(late if is_correct else early)
    return result + 1


def memory_is_freed_while_a_side_stream_reads(is_correct: bool) -> object:
    import torch

    side = torch.cuda.Stream()
    product = torch.ones(NUM_ITEMS, device="cuda") * 2
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        total = product + 1
    if is_correct:
        product.record_stream(side)
    del product
    return torch.ones(NUM_ITEMS, device="cuda") * 3, total


def side_stream_writes_what_is_read(is_correct: bool) -> object:
    import torch

    side = torch.cuda.Stream()
    weight = torch.ones(NUM_ITEMS, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    total = weight.sum()
    if is_correct:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        weight.zero_()
    torch.cuda.current_stream().wait_stream(side)
    return total


def halves_of_a_tensor_overlap(is_correct: bool) -> object:
    """Two streams may write to parts of one storage that do not overlap."""
    import torch

    side = torch.cuda.Stream()
    whole = torch.zeros(NUM_ITEMS, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    whole[: NUM_ITEMS // 2].fill_(1)
    with torch.cuda.stream(side):
        whole[NUM_ITEMS // 2 - (not is_correct) :].fill_(2)
    torch.cuda.current_stream().wait_stream(side)
    return whole


def host_waits_for_the_wrong_stream(is_correct: bool) -> object:
    import torch

    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = torch.ones(NUM_ITEMS, device="cuda")
    (side if is_correct else other).synchronize()
    return result + 1


def other_device_reads_a_side_stream(is_correct: bool) -> object:
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = torch.ones(NUM_ITEMS, device="cuda")
    if is_correct:
        torch.cuda.current_stream().wait_stream(side)
    return result.to("cuda:1")


@pytest.mark.parametrize(
    "program",
    [
        side_stream_reads,
        result_of_side_stream_is_read,
        event_is_recorded_too_early,
        memory_is_freed_while_a_side_stream_reads,
        side_stream_writes_what_is_read,
        halves_of_a_tensor_overlap,
        host_waits_for_the_wrong_stream,
        other_device_reads_a_side_stream,
    ],
    ids=lambda program: program.__name__,
)
def test_only_the_wrong_twin_is_reported(program: Program) -> None:
    assert findings_of(lambda: program(True)) == []
    findings = findings_of(lambda: program(False))
    assert any("race on device memory" in finding for finding in findings)


def test_a_race_is_reported_with_both_stacks_and_raised_at_the_second_access(simulated_gpu: Any) -> None:
    import torch

    side = torch.cuda.Stream()
    product = torch.ones(NUM_ITEMS, device="cuda") * 2
    with torch.cuda.stream(side), pytest.raises(RuntimeError, match="aten::add reads on stream") as raised:
        product + 1
    now, before = str(raised.value).split("before:")
    assert "aten::mul writes on stream 0 of device 0" in now
    assert "test_races.py" in now
    assert "test_races.py" in before
    torch.cuda.synchronize()
    simulated_gpu.findings(True)


@pytest.mark.parametrize(
    "mixture",
    [
        lambda torch: torch.ones(2, device="cuda") + torch.ones(2),
        lambda torch: torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1"),
        lambda torch: torch.ones(2, 2, device="cuda") @ torch.ones(2, 2),
        lambda torch: torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2)),
    ],
)
def test_tensors_of_different_devices_are_refused(mixture: Callable[[Any], object]) -> None:
    import torch

    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        mixture(torch)


def test_numbers_without_dimensions_and_indices_may_be_on_the_host() -> None:
    import torch

    tensor = torch.arange(4.0, device="cuda")
    assert (tensor * torch.tensor(2.0)).tolist() == [0, 2, 4, 6]
    assert tensor[torch.tensor([3, 1])].tolist() == [3, 1]


def test_a_device_that_is_not_there_is_refused() -> None:
    import torch

    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device=f"cuda:{torch.cuda.device_count()}")


def test_times_of_events_that_nobody_waited_for_are_refused() -> None:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.ones(2, device="cuda")
    end.record()
    with pytest.raises(RuntimeError, match="must be completed before calculating elapsed time"):
        begin.elapsed_time(end)
    end.synchronize()
    assert begin.elapsed_time(end) >= 0


def test_an_event_is_not_ready_when_it_is_first_queried() -> None:
    import torch

    event = torch.cuda.Event()
    torch.ones(2, device="cuda")
    event.record()
    assert not event.query()
    assert event.query()
