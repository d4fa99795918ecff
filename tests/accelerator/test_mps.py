"""What is never requested from an Apple GPU: asynchronous copies and events. Its memory is what the driver reports.

The CPU build of torch has no events of MPS: making one fails these tests.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

from foretune.accelerator import memory
from foretune.accelerator.copies import (
    CopiesIssued,
    NumbersToRead,
    copy,
    fill,
    from_host,
    lasting_copies,
    loader_settings,
    moved,
    room_for,
    to_host,
)
from foretune.accelerator.copy_queues import CopiesInTurn, queue_beside
from foretune.choices.training import Levers
from foretune.step.ema import MovingAverage
from foretune.step.levers.offloading import Traffic, _Moved
from foretune.step.optimizing import build_optimizer
from foretune.step.training_step import StepOutcome
from foretune.training.memory_now import MemoryNow
from foretune.training.meter import Meter
from foretune.training.phases import PhaseClock
from tests.accelerator.fake_mps import MPS, FakeMps, fake_mps
from tests.data.test_maker import _cached
from tests.step.test_optimizers import choice


def assert_copies_wait(mps: FakeMps, *directions: str) -> None:
    """And that there are some, each way that is named."""
    assert {direction for direction, _ in mps.copies} >= set(directions)
    assert not [copy for copy in mps.copies if copy[1]], "an asynchronous copy was requested"


def test_control_the_fake_notices_asynchronous_copies() -> None:
    with fake_mps() as mps:
        there = torch.ones(2).to("mps", non_blocking=True)
        assert there.device == MPS
        assert (there + 1).device == MPS
        torch.empty(2).copy_(there, non_blocking=True)
        assert there.cpu().device.type == "cpu"
    assert mps.copies == [("to mps", True), ("to host", True), ("to host", False)]


def test_single_copies() -> None:
    with fake_mps() as mps:
        host = torch.arange(6.0)
        there = moved(host, MPS)
        stored = to_host(there)
        rooms = [room_for(stored, MPS), from_host(stored, MPS)]
        fill(rooms[0], stored)
        copy(rooms[1], stored)
        ((index, lasting),) = lasting_copies([there], MPS)
        assert [tensor.device for tensor in (there, *rooms)] == [MPS] * 3
        assert [tensor.device.type for tensor in (stored, lasting)] == ["cpu"] * 2
        assert index == 0
        CopiesIssued(MPS).wait()
    assert_copies_wait(mps, "to mps", "to host")
    assert all(torch.equal(host, tensor) for tensor in (stored, lasting, *rooms))
    assert loader_settings(MPS) == {"pin_memory": False}
    assert isinstance(queue_beside(MPS), CopiesInTurn)


def test_a_batch(tmp_path: Path) -> None:
    maker, _, _ = _cached(tmp_path)
    batch = maker[0]
    with fake_mps() as mps:
        there = batch.to("mps")
        assert there.noise.device == there.uniform.device == MPS
        assert there.uniform.dtype == torch.float32
    assert_copies_wait(mps, "to mps")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_optimizer_and_average_on_the_host(dtype: torch.dtype) -> None:
    with fake_mps() as mps:
        weights = [nn.Parameter(mps.place(torch.ones(4, 4, dtype=dtype))) for _ in range(3)]
        updater = build_optimizer(choice("adamw"), weights, levers=Levers(optimizer_offload=True))
        average = MovingAverage({str(i): weight for i, weight in enumerate(weights)}, 0.9, on_host=True)
        updater.set_lr(0.1)
        for weight in weights:
            weight.grad = mps.place(torch.ones(4, 4, dtype=dtype))
        updater.step()
        average.update()
        assert all(float(weight.detach().float().max()) < 1 for weight in weights)
    assert_copies_wait(mps, "to mps", "to host")


def test_activations_on_the_host() -> None:
    """The hooks themselves: autograd calls them from where the stand-in does not see."""
    with fake_mps() as mps:
        saved = mps.place(torch.arange(12.0).view(3, 4))
        moved_tensor = _Moved(saved, Traffic(), [])
        assert moved_tensor.on_device().device == MPS
    assert torch.equal(moved_tensor.on_device(), saved.flatten())
    assert_copies_wait(mps, "to mps", "to host")


def test_numbers_are_waited_for_before_the_step_ends() -> None:
    """The host's clock measures the step, so the device's work must be complete when it is read."""
    order: list[str] = []

    with fake_mps() as mps:

        def now() -> float:
            order.extend([*(direction for direction, _ in mps.copies), "clock"])
            return 0.0

        meter = Meter(PhaseClock(now=now))
        order.clear()
        meter.record(0, 0.5, StepOutcome(mps.place(torch.tensor(2.5, dtype=torch.bfloat16)), None))
    assert order == ["to host", "clock"]
    assert_copies_wait(mps, "to host")
    (reading,) = meter.arrived()
    assert reading.loss == 2.5
    assert reading.num_owed is None


def test_numbers_need_no_event() -> None:
    with fake_mps() as mps:
        numbers = NumbersToRead([mps.place(torch.tensor(1.5)), mps.place(torch.tensor(2.0))])
        assert mps.copies == [("to host", False)]
        assert numbers.have_arrived()
        assert numbers.read() == [1.5, 2.0]


def test_memory_is_what_the_driver_has_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    series = iter([700, 300, 500, 200, 100])
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: next(series))
    memory.reset_peaks(MPS)
    assert MemoryNow(MPS).read()["device"] == 700
    assert memory.peak_allocated_bytes(MPS) == 700
    assert memory.peak_reserved_bytes(MPS) is None
    memory.reset_peaks(MPS)
    assert memory.peak_allocated_bytes(MPS) == 500
    assert [memory.allocated_bytes(MPS), memory.peak_allocated_bytes(MPS)] == [200, 500]


def test_its_cache_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: emptied.append("mps"))
    memory.free_memory()
    assert emptied == ["mps"]
