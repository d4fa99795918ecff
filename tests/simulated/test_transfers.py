"""Copies to and from the simulated GPU: page-locked where that is said, waited for as rarely as is said."""

import gc
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foretune as ft
from foretune.accelerator import page_locked
from foretune.accelerator.copies import (
    NumbersToRead,
    copy,
    lasting_copies,
    moved,
    to_host,
    wait_for_copies,
    watching_host,
)
from foretune.accelerator.copy_queues import CopiesBeside, CopiesInTurn, copying_with
from foretune.choices.memory_pieces import aligned, page_locked_blocks
from foretune.choices.swapping import SwapSchedule
from foretune.choices.training import Levers
from foretune.step.ema import MovingAverage
from foretune.step.levers.offloading import moving_from
from foretune.step.levers.swapping import SwappedBlocks
from foretune.step.optimizing import build_optimizer
from tests.step.levers.deep_steps import LORA, deep_step
from tests.step.small_steps import made_batch
from tests.step.test_optimizers import choice

pytestmark = pytest.mark.simulated

CUDA = torch.device("cuda", 0)


def weights_on_gpu(num: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.full((64, 64), 0.5 + index, dtype=dtype, device=CUDA)) for index in range(num)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_offloaded_optimizer_waits_once_for_each_step(simulated_gpu: Any, dtype: torch.dtype) -> None:
    weights = weights_on_gpu(20, dtype)
    updater = build_optimizer(choice("adamw"), weights, levers=Levers(optimizer_offload=True))
    updater.set_lr(1e-2)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        simulated_gpu.syncs(True)
        updater.step()
        assert len(simulated_gpu.syncs(True)) == 1


@pytest.mark.parametrize("num_weights", [1, 40, 150])
def test_an_average_on_the_host_waits_a_bounded_number_of_times(
    simulated_gpu: Any, num_weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretune.choices.memory_pieces._SMALLEST_GROUP_BYTES", 1)
    named = {str(index): weight for index, weight in enumerate(weights_on_gpu(num_weights))}
    average = MovingAverage(named, 0.5, on_host=True)
    with torch.no_grad():
        for weight in named.values():
            weight.zero_()
    simulated_gpu.syncs(True)
    average.update()
    assert 1 <= len(simulated_gpu.syncs(True)) <= 16
    assert [float(average.average[name][0, 0]) for name in named] == [0.25 + i / 2 for i in range(num_weights)]


def test_copies_that_stay_share_page_locked_blocks(simulated_gpu: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randn(shape, generator=generator) for shape in [(300, 70), (5,), (128, 128), (3, 4, 5, 6), ()]]
    sources.append(torch.randn(40, 30, generator=generator).t())
    sources.append(torch.randn(2, 3, 8, 8, generator=generator).to(memory_format=torch.channels_last))
    sources.append(torch.randint(0, 255, (33,), generator=generator, dtype=torch.uint8))
    on_device: list[torch.Tensor | None] = [moved(source, CUDA) for source in sources]
    copies = dict(lasting_copies(on_device, CUDA))
    assert on_device == [None] * len(sources)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in copies.values()}
    blocks = page_locked_blocks([source.nbytes for source in sources])
    assert sorted(storages.values()) == sorted(block.num_bytes for block in blocks)
    assert all(page_locked.is_locked(tensor) for tensor in copies.values())
    for index, source in enumerate(sources):
        assert torch.equal(copies[index], source)
        assert copies[index].stride() == source.stride()


def test_copies_from_pageable_memory_are_not_requested_as_asynchronous(simulated_gpu: Any) -> None:
    """The simulated device lists such requests apart: they wait, against what the argument says."""
    pageable, locked = torch.ones(100), page_locked.locked(torch.ones(100), CUDA)
    there = moved(pageable, CUDA)
    copy(there, pageable)
    copy(pageable, there)
    assert not [reason for reason, _ in simulated_gpu.syncs(True) if "page-locked" in reason]
    copy(there, locked)
    stored = to_host(there)
    assert simulated_gpu.syncs(True) == []
    wait_for_copies(CUDA)
    assert torch.equal(stored, locked)


def test_only_the_copies_are_waited_for(simulated_gpu: Any) -> None:
    """Not the whole device: work on other streams, or issued later, goes on meanwhile."""
    stored = to_host(torch.full((4,), 2.5).cuda())
    simulated_gpu.syncs(True)
    wait_for_copies(CUDA)
    assert [reason for reason, _ in simulated_gpu.syncs(True)] == ["event.synchronize"]
    assert stored.tolist() == [2.5] * 4


def test_numbers_are_complete_once_they_are_waited_for(simulated_gpu: Any) -> None:
    numbers = NumbersToRead([torch.tensor(1.5).cuda(), torch.tensor(2.5).cuda()])
    assert not numbers.have_arrived()
    numbers.wait()
    assert numbers.read() == [1.5, 2.5]


def experiment(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": str(folder),
        "method": {"kind": "lora", "rank": 4},
        "data": {"kind": "shapes", "resolution": 64, "num_samples": 8},
        "train": {"steps": 2, "batch_size": 1, "precision": "bf16"},
        "validate": {"num_held_out": 2},
        **more,
    }


def test_each_of_two_trainings_in_a_process_records_its_own_peak(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_pipeline("flux", "dev")
    peaks = []
    for batch_size in (4, 1):
        train = {"steps": 1, "batch_size": batch_size, "precision": "bf16"}
        run = ft.train(experiment(folder, train=train, validate={"num_held_out": 0}), runs=tmp_path / "runs")
        assert run.measured is not None
        assert run.measured.peak_device_bytes is not None
        peaks.append(run.measured.peak_device_bytes)
    large, small = peaks
    assert small < 0.8 * large


def test_a_run_goes_on_where_page_locking_is_refused(
    simulated_gpu: Any, tiny_pipeline: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container with a limit: the copies wait, the results are the same, and the record says so once."""
    levers = {"gradient_checkpointing": 1, "block_swap": 2, "optimizer_offload": True}
    asked = experiment(tiny_pipeline("flux", "dev"), levers=levers, validate={"num_held_out": 0})
    monkeypatch.setattr(page_locked, "_refusal", None)
    plain = ft.train(asked, runs=tmp_path / "runs")
    torch.accelerator.empty_host_cache()
    simulated_gpu.set_pinned_limit(1)
    try:
        limited = ft.train(asked, runs=tmp_path / "runs")
    finally:
        simulated_gpu.set_pinned_limit(sys.maxsize)
    assert plain.status == limited.status == "finished"
    assert plain.measured is not None
    assert limited.measured is not None
    assert limited.measured.last_loss == plain.measured.last_loss
    assert plain.record is not None
    assert limited.record is not None
    counts = [sum("page-lock" in text for text in record.warnings) for record in (plain.record, limited.record)]
    assert counts == [0, 1]


def test_a_swapped_block_that_never_ran_leaves_no_copy_in_flight(simulated_gpu: Any) -> None:
    """Its memory is given to whatever computes next."""
    blocks = tuple(nn.Linear(64, 64, bias=False).requires_grad_(False) for _ in range(2))
    swapped = SwappedBlocks(blocks, SwapSchedule((0, 1), (1, 0), prefetch=1))
    swapped.place(nn.ModuleList(blocks), CUDA)
    swapped._copies[1] = swapped._started(1, CUDA)
    room = swapped._copies[1].weights[0].data_ptr()
    swapped._release(1)
    assert torch.ones(64, 64, device=CUDA).data_ptr() == room


def _note_size(sizes: list[int], copy: torch.Tensor) -> None:
    sizes.append(copy.nbytes)


@pytest.mark.parametrize(
    ("name", "levers"),
    [
        ("flux", {}),
        ("flux", {"gradient_checkpointing": 1}),
        ("sd3", {"gradient_checkpointing": 1, "activation_offload_parts": "attention"}),
        ("flux", {"gradient_checkpointing": 1, "block_swap": 3}),
    ],
    ids=["kept", "computed again", "attention", "with block swap"],
)
def test_activations_are_copied_beside_computation_and_change_nothing(
    simulated_gpu: Any, name: str, levers: dict[str, Any], tiny_pipeline: Callable[..., Path]
) -> None:
    """Neither a race nor a wait of the host, the same gradients, and at most one storage more on the device."""
    depths = {"flux": (2, 4), "sd3": (1, 2)}[name]
    losses: list[float] = []
    gradients: list[list[torch.Tensor]] = []
    peaks: list[int] = []
    sizes: list[int] = []
    for overlaps in (True, False):
        offload = {**levers, "activation_offload": True}
        small = deep_step(tiny_pipeline(name), depths, LORA, levers=offload, device=CUDA)
        make = CopiesBeside if overlaps else (lambda _: CopiesInTurn())
        gc.collect()  # models of earlier cases would leave the device while this one is measured
        held = torch.cuda.memory_allocated()
        with copying_with(make), watching_host(partial(_note_size, sizes)), moving_from(0):
            simulated_gpu.syncs(True)
            torch.cuda.reset_peak_memory_stats()
            with small.step.around_forward():
                loss = small.step.loss(made_batch(small.family, 2, device="cuda"))
            loss.backward()
            assert not [reason for reason, stack in simulated_gpu.syncs(True) if "offloading" in stack]
        peaks.append(torch.cuda.max_memory_allocated() - held)
        losses.append(float(loss.detach()))
        gradients.append([weight.grad for weight in small.step.trained.values() if weight.grad is not None])
        del small, loss
    assert losses[0] == losses[1]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert any(gradient.count_nonzero() for gradient in gradients[0])
    assert peaks[0] <= peaks[1] + aligned(max(sizes))
