"""Activation offload: everything the backward pass needs waits on the host, comes back, and is what it was."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretune.accelerator import copies as device_copies
from foretune.accelerator.copies import copy, watching_host
from foretune.accelerator.copy_queues import copying_with
from foretune.step.levers import offloading
from foretune.step.levers.offloading import activations_on_host, leaving_leaves, moving_from
from foretune.step.quantizing.applying import quantizing_with
from foretune.trace.making import TORCHAO_AUTOGRAD
from tests.step.levers.deep_steps import DROPPING, LORA, assert_equal, deep_step, loss_and_gradients
from tests.step.levers.host_guard import HostGuard
from tests.step.levers.live_bytes import live_bytes

TinyPipeline = Callable[..., Path]

SMALLEST_BYTES = 4096
"""As the page on levers says."""
DEPTHS: dict[str, tuple[int, ...]] = {"flux": (2, 3), "sd3": (1, 2), "ddpm": ()}


@pytest.mark.parametrize("name", DEPTHS)
@pytest.mark.parametrize(
    ("levers", "method", "precision"),
    [
        ({}, "full", "fp32"),
        ({}, DROPPING, "bf16"),
        ({"gradient_checkpointing": 0.5}, DROPPING, "fp32"),
        ({"gradient_checkpointing": 1, "activation_offload_parts": "attention"}, DROPPING, "bf16"),
    ],
    ids=["full", "kept", "half computed again", "attention"],
)
def test_gradients_are_bit_identical(
    name: str, levers: Any, method: Any, precision: str, tiny_pipeline: TinyPipeline
) -> None:
    asked: dict[str, Any] = {"train": {"precision": precision}, "levers": {**levers, "activation_offload": True}}
    small = deep_step(tiny_pipeline(name), DEPTHS[name], method, **asked)
    guard = HostGuard()
    with guard.watching(), guard, moving_from(0):
        found = loss_and_gradients(small)
    assert guard.num_read > 0
    plain = deep_step(tiny_pipeline(name), DEPTHS[name], method, train={"precision": precision})
    assert_equal(found, loss_and_gradients(plain))


@pytest.mark.parametrize("numbers", ["none", "float8"])
def test_what_has_no_gradient_is_moved_too_and_changes_nothing(numbers: str, tiny_pipeline: TinyPipeline) -> None:
    """Masks of dropout and widened 8-bit weights: moving them saves memory, and no bit depends on it."""
    sections: dict[str, Any] = {
        "train": {"precision": "bf16"},
        "quantize": {"denoiser": numbers, **({"keep": []} if numbers != "none" else {})},
    }
    offload = {"gradient_checkpointing": 1, "activation_offload": True, "activation_offload_parts": "attention"}

    def found(levers: dict[str, Any], around: AbstractContextManager[None]) -> tuple[Any, int]:
        copies: list[Tensor] = []
        with quantizing_with(TORCHAO_AUTOGRAD):
            small = deep_step(tiny_pipeline("sd3"), (1, 2), DROPPING, levers=levers, **sections)
        with watching_host(copies.append), moving_from(0), around:
            result = loss_and_gradients(small)
        return result, sum(copy.nbytes for copy in copies)

    plain, nothing = found({}, nullcontext())
    moved, num_bytes = found(offload, nullcontext())
    left, fewer_bytes = found(offload, leaving_leaves())
    assert 0 == nothing < fewer_bytes < num_bytes
    assert_equal(moved, plain)
    assert_equal(left, plain)


def test_leaves_are_those_without_a_gradient() -> None:
    copies: list[Tensor] = []
    values = torch.randn(SMALLEST_BYTES // 4, requires_grad=True)
    mask = (torch.rand(SMALLEST_BYTES // 4) > 0.5).float()
    with watching_host(copies.append), activations_on_host(nn.Identity()), leaving_leaves():
        hidden = values * 1.0
        out = (hidden * mask).square().sum()
    # The product that was squared has a graph behind it; the mask that it was multiplied with has none.
    assert len(copies) == 1
    out.backward()
    assert values.grad is not None
    assert torch.equal(values.grad, 2 * values.detach() * mask)


@pytest.mark.parametrize(("name", "method"), [("flux", "full"), ("sd3", LORA), ("ddpm", LORA)])
def test_weights_and_buffers_are_never_copied(
    name: str, method: Any, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = deep_step(tiny_pipeline(name), DEPTHS[name], method, levers={"activation_offload": True})
    lasting = {
        tensor.untyped_storage().data_ptr()
        for tensor in (*small.step.denoiser.parameters(), *small.step.denoiser.buffers())
    }
    moved: list[int] = []

    def to_host(tensor: Tensor) -> Tensor:
        moved.append(tensor.untyped_storage().data_ptr())
        return device_copies.to_host(tensor)

    monkeypatch.setattr(offloading, "to_host", to_host)
    loss_and_gradients(small, 8)
    assert moved
    assert not lasting & set(moved)


@pytest.mark.parametrize("name", DEPTHS)
def test_next_to_nothing_stays_on_the_device(name: str, tiny_pipeline: TinyPipeline) -> None:
    kept, moved, inputs_moved = (
        live_bytes(deep_step(tiny_pipeline(name), DEPTHS[name], LORA, levers=levers), 2 if name == "ddpm" else 12)
        for levers in (
            {},
            {"activation_offload": True},
            {"activation_offload": True, "gradient_checkpointing": 1},
        )
    )
    assert moved.kept < 0.1 * kept.kept
    assert 0.9 * kept.kept < moved.on_host + moved.kept < 1.1 * kept.kept
    assert moved.peak < kept.peak
    # Of checkpointed blocks it is their inputs.
    assert 0 < inputs_moved.on_host < moved.on_host
    assert inputs_moved.kept < moved.kept
    assert moved.left == inputs_moved.left == 0


def test_a_storage_is_moved_once_however_many_views_of_it_are_kept() -> None:
    copies: list[Tensor] = []
    values = torch.randn(SMALLEST_BYTES // 4, 1, requires_grad=True)
    with watching_host(copies.append), activations_on_host(nn.Identity()):
        whole = values * 1.0
        halves = whole.view(2, -1)
        out = (whole.square().sum() + halves.square().sum() + halves[1].exp().sum()).square()
    out.backward()
    sizes = [copy.nbytes for copy in copies]
    # The values that were squared, and the half that exp returned, which is too small to be moved.
    assert sizes == [SMALLEST_BYTES]


def test_a_tensor_that_changes_in_between_is_moved_again() -> None:
    """Autograd itself would refuse: what was kept is gone. On the host it is as it was."""
    start = torch.randn(SMALLEST_BYTES // 4, requires_grad=True)
    copies: list[Tensor] = []
    with watching_host(copies.append), activations_on_host(nn.Identity()):
        values = start * 1.0
        first = values.square().sum()
        with torch.no_grad():
            values.mul_(2)
        second = values.square().sum()
    assert len(copies) == 2
    (first + second).backward()
    assert start.grad is not None
    assert torch.allclose(start.grad, 2 * start.detach() + 4 * start.detach())


def test_small_storages_stay() -> None:
    copies: list[Tensor] = []
    values = torch.randn(SMALLEST_BYTES // 4 - 1, requires_grad=True)
    with watching_host(copies.append), activations_on_host(nn.Identity()):
        out = (values * 1.0).square().sum()
    out.backward()
    assert not copies
    assert values.grad is not None
    assert torch.equal(values.grad, 2 * values.detach())


class LateQueue:
    """Implements `CopyQueue`: copies arrive, in order, when one of them is waited for. Until then targets hold NaN."""

    def __init__(self) -> None:
        self._owed: list[tuple[Tensor, Tensor]] = []
        self.num_started = 0
        self.most_owed = 0

    def start(self, rooms: Sequence[Tensor], stored: Sequence[Tensor]) -> "_LateArrival":
        for room, source in zip(rooms, stored, strict=True):
            room.fill_(torch.nan)
            self._owed.append((room, source))
            self.num_started += 1
        self.most_owed = max(self.most_owed, len(self._owed))
        return _LateArrival(self, self.num_started)

    def deliver(self, num: int) -> None:
        while self.num_started - len(self._owed) < num:
            room, source = self._owed.pop(0)
            copy(room, source)


@dataclass
class _LateArrival:
    queue: LateQueue
    num: int

    def wait(self) -> None:
        self.queue.deliver(self.num)


@pytest.mark.parametrize("name", DEPTHS)
@pytest.mark.parametrize(
    "levers",
    [
        {},
        {"gradient_checkpointing": 1},
        {"gradient_checkpointing": 1, "checkpoint_segment": 2},
        {"gradient_checkpointing": 1, "activation_offload_parts": "attention"},
    ],
    ids=["kept", "computed again", "segments", "attention"],
)
def test_late_copies_change_nothing(name: str, levers: dict[str, Any], tiny_pipeline: TinyPipeline) -> None:
    """On a device with a second stream, copies to the host and back are awaited before they are needed, not earlier."""
    queues: list[LateQueue] = []

    def make(_: torch.device) -> LateQueue:
        queues.append(LateQueue())
        return queues[-1]

    small = deep_step(tiny_pipeline(name), DEPTHS[name], DROPPING, levers={**levers, "activation_offload": True})
    with copying_with(make), moving_from(0):
        found = loss_and_gradients(small)
    assert_equal(found, loss_and_gradients(deep_step(tiny_pipeline(name), DEPTHS[name], DROPPING)))
    assert sum(queue.num_started for queue in queues) > 4
    assert max(queue.most_owed for queue in queues) == 2, "one is copied while the next is awaited"


@pytest.mark.parametrize(("shape", "are_moved"), [((24,), True), ((2, 24), True), ((4, 7), False), ((4, 9), True)])
def test_a_small_step_moves_what_a_large_one_moves(shape: tuple[int, ...], are_moved: bool) -> None:
    """With a limit of 32 bytes for each of 4 samples, a copy of weights moves in each batch, and a few numbers of each
    sample in none.
    """
    start = torch.randn(shape, requires_grad=True)
    copies: list[Any] = []
    with watching_host(copies.append), moving_from(32, batch_size=4), activations_on_host(nn.Identity()):
        (start * 1.0).square().sum().backward()
    assert bool(copies) == are_moved


def test_a_tensor_that_changes_while_it_is_copied_is_refused() -> None:
    start = torch.randn(SMALLEST_BYTES // 4, requires_grad=True)

    def change_what_was_saved() -> None:
        with activations_on_host(nn.Identity()):
            values = start * 1.0
            values.square().sum()
            with torch.no_grad():
                values.mul_(2)

    with copying_with(lambda _: LateQueue()), pytest.raises(RuntimeError, match="changed in place"):
        change_what_was_saved()
