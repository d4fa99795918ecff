"""Swapped blocks are copied ahead: early enough, awaited before use, released after use, and without any effect."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretune.accelerator.copy_queues import CopiesBeside, CopiesInTurn, queue_beside
from tests.step.levers.deep_steps import DROPPING, LORA, assert_equal, deep_step, loss_and_gradients
from tests.step.levers.slow_copies import SlowCopies
from tests.step.small_steps import SmallStep, made_batch

TinyPipeline = Callable[..., Path]

DEPTHS = (2, 4)


def swapped(num_blocks: int, prefetch: int, **more: Any) -> dict[str, Any]:
    return {"gradient_checkpointing": 1, "block_swap": num_blocks, "block_swap_prefetch": prefetch, **more}


def slow_pass(small: SmallStep) -> tuple[SlowCopies, tuple[float, Any]]:
    with SlowCopies().copying(small) as copies:
        return copies, loss_and_gradients(small)


@pytest.mark.parametrize("prefetch", [1, 2, 3])
@pytest.mark.parametrize("num_swapped", [3, 6])
def test_a_copy_starts_before_the_block_before_it_computes(
    prefetch: int, num_swapped: int, tiny_pipeline: TinyPipeline
) -> None:
    """And each is awaited only when its block begins, so that others compute meanwhile."""
    small = deep_step(tiny_pipeline("flux"), DEPTHS, LORA, levers=swapped(num_swapped, prefetch))
    copies, _ = slow_pass(small)
    on_host = set(copies.order_of("copy"))
    assert len(on_host) == num_swapped
    events = [event for event in copies.events if event[1] in on_host]
    computed = [index for index, (what, _) in enumerate(events) if what == "compute"]
    uses = [events[index][1] for index in computed]
    assert uses == [*sorted(on_host), *sorted(on_host, reverse=True)]
    for before, after in pairwise(computed):
        number = events[after][1]
        if number != events[before][1]:
            assert ("copy", number) in events[:before], "the copy starts before the block before it computes"
        arrivals = [index for index in range(after) if events[index] == ("arrive", number)]
        assert arrivals, "the block waits for its weights"
        begins = [index for index in range(after) if events[index] == ("copy", number)]
        if arrivals[-1] > before:
            assert begins[-1] < before, "the block before it computed while the copy was on its way"


@pytest.mark.parametrize("prefetch", [1, 2, 6])
def test_so_many_blocks_are_on_the_device_and_none_between_passes(prefetch: int, tiny_pipeline: TinyPipeline) -> None:
    small = deep_step(tiny_pipeline("flux"), DEPTHS, LORA, levers=swapped(6, prefetch))
    with SlowCopies().copying(small) as copies:
        for _ in range(2):
            loss_and_gradients(small)
            assert sorted(copies.order_of("release")) == sorted(copies.order_of("copy"))
    assert copies.most_at_once() == min(6, prefetch + 1)
    assert copies.released_early == []


def test_a_block_that_has_run_is_released_at_once(tiny_pipeline: TinyPipeline) -> None:
    """While blocks 2 and 4 run, which are not swapped, only the next swapped block is on the device."""
    small = deep_step(tiny_pipeline("flux"), DEPTHS, LORA, levers=swapped(3, 1))
    copies, _ = slow_pass(small)
    live, beside = 0, []
    for what, number in copies.events:
        live += (what == "copy") - (what == "release")
        if what == "compute" and number in (2, 4):
            beside.append(live)
    assert beside == [1] * 4


def test_without_prefetching_no_second_stream_is_made(tiny_pipeline: TinyPipeline) -> None:
    small = deep_step(tiny_pipeline("flux"), DEPTHS, LORA, levers=swapped(6, 0))
    copies, found = slow_pass(small)
    assert copies.order_of("copy") == []
    assert_equal(found, loss_and_gradients(deep_step(tiny_pipeline("flux"), DEPTHS, LORA)))


def test_the_last_block_of_the_forward_pass_stays_for_the_backward_pass(tiny_pipeline: TinyPipeline) -> None:
    small = deep_step(tiny_pipeline("flux"), DEPTHS, LORA, levers=swapped(6, 1))
    copies, _ = slow_pass(small)
    assert copies.order_of("copy") == [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0]


def test_without_training_the_forward_pass_is_all(tiny_pipeline: TinyPipeline) -> None:
    small = deep_step(tiny_pipeline("flux"), DEPTHS, LORA, levers=swapped(6, 1))
    with SlowCopies().copying(small) as copies, torch.no_grad():
        for _ in range(2):
            small.step.loss(made_batch(small.family, 2))
    assert copies.order_of("copy") == [0, 1, 2, 3, 4, 5] * 2
    assert copies.order_of("release") == [0, 1, 2, 3, 4, 5] * 2


@pytest.mark.parametrize("prefetch", [1, 2, 5, 20])
@pytest.mark.parametrize(
    ("name", "depths", "more"),
    [
        ("flux", (2, 4), {}),
        ("flux", (2, 4), {"checkpoint_segment": 2}),
        ("sd3", (2, 3), {"checkpoint_segment": 3, "activation_offload": True}),
        ("ddpm", (), {"channels_last": True}),
    ],
)
def test_late_copies_change_nothing(
    name: str, depths: tuple[int, ...], more: dict[str, Any], prefetch: int, tiny_pipeline: TinyPipeline
) -> None:
    small = deep_step(tiny_pipeline(name), depths, DROPPING, levers=swapped(3, prefetch, **more))
    copies, found = slow_pass(small)
    assert copies.order_of("copy")
    assert copies.released_early == []
    layout = {"channels_last": True} if "channels_last" in more else {}
    assert_equal(found, loss_and_gradients(deep_step(tiny_pipeline(name), depths, DROPPING, levers=layout)))


def test_late_copies_change_nothing_without_checkpointing(tiny_pipeline: TinyPipeline) -> None:
    """The step refuses it because it saves nothing; the weights are right all the same."""
    levers = {**swapped(4, 1), "gradient_checkpointing": 0}
    small = deep_step(tiny_pipeline("flux"), DEPTHS, DROPPING, levers=levers)
    _, found = slow_pass(small)
    assert_equal(found, loss_and_gradients(deep_step(tiny_pipeline("flux"), DEPTHS, DROPPING)))


@pytest.mark.parametrize("base", ["int8", "float8", "float8-dynamic", "nf4", "int8-bnb", "float8-training"])
def test_late_copies_of_a_quantised_base(base: str, tiny_pipeline: TinyPipeline) -> None:
    pytest.importorskip("torchao" if "bnb" not in base and base != "nf4" else "bitsandbytes")
    quantize = {"denoiser": base}
    small = deep_step(tiny_pipeline("flux"), (1, 2), LORA, levers=swapped(3, 1), quantize=quantize)
    _, found = slow_pass(small)
    assert_equal(found, loss_and_gradients(deep_step(tiny_pipeline("flux"), (1, 2), LORA, quantize=quantize)))


def test_after_an_error_nothing_in_flight_is_dropped_before_it_arrives(tiny_pipeline: TinyPipeline) -> None:
    """The copy of the next block is on its way when a block fails, and a pass that begins elsewhere releases it."""
    small = deep_step(tiny_pipeline("flux"), DEPTHS, LORA, levers=swapped(6, 1))
    block = small.family.blocks(small.step.denoiser)[3]

    def fail(*_: Any) -> None:
        raise RuntimeError("stopped inside")

    with SlowCopies().copying(small) as copies:
        linear = next(module for module in block.modules() if isinstance(module, nn.Linear))
        handle = linear.register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="stopped inside"):
            loss_and_gradients(small)
        handle.remove()
        assert copies.events[-1] != ("arrive", 4)
        found = loss_and_gradients(small)
    assert ("arrive", 4) in copies.events
    assert copies.released_early == []
    assert_equal(found, loss_and_gradients(deep_step(tiny_pipeline("flux"), DEPTHS, LORA)))


class FakeStreams:
    """Stands for `torch.cuda`: notes what is called, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def Stream(self, device: torch.device) -> "FakeStream":  # noqa: N802 - torch's interface
        return FakeStream("side", self.calls)

    def Event(self) -> "FakeEvent":  # noqa: N802 - torch's name
        return FakeEvent(self.calls)

    def current_stream(self, device: torch.device) -> "FakeStream":
        return FakeStream("compute", self.calls)

    @contextmanager
    def stream(self, stream: "FakeStream") -> Iterator[None]:
        self.calls.append(f"enter {stream.name}")
        yield
        self.calls.append(f"leave {stream.name}")


class FakeStream:
    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self._calls = name, calls

    def wait_stream(self, other: "FakeStream") -> None:
        self._calls.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: "FakeEvent") -> None:
        self._calls.append(f"{self.name} waits for the event of {event.stream}")


class FakeEvent:
    def __init__(self, calls: list[str]) -> None:
        self._calls, self.stream = calls, ""

    def record(self, stream: FakeStream) -> None:
        self.stream = stream.name
        self._calls.append(f"event on {stream.name}")


def test_copies_beside_computation_wait_for_it_and_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that earlier kernels still use is not overwritten; weights that have not arrived are not read."""
    streams = FakeStreams()

    def noted(room: Tensor, stored: Tensor) -> None:
        streams.calls.append("copy")
        room.copy_(stored)

    monkeypatch.setattr("foretune.accelerator.copy_queues.fill", noted)
    queue = CopiesBeside(torch.device("cpu"), streams)
    rooms, stored = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.ones(3)]
    queue.start(rooms, stored).wait()
    assert streams.calls == [
        "side waits for compute",
        "enter side",
        "copy",
        "copy",
        "leave side",
        "event on side",
        "compute waits for the event of side",
    ]
    assert all(torch.equal(room, tensor) for room, tensor in zip(rooms, stored, strict=True))


@pytest.mark.parametrize("device", ["cpu", "mps", "xpu", "meta"])
def test_other_devices_copy_in_turn(device: str) -> None:
    assert isinstance(queue_beside(torch.device(device)), CopiesInTurn)
