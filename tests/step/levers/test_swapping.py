"""Block swap: weights come when a block runs and go when it has ended; all who look find the real ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foretune.choices.swapping import chosen_to_swap
from foretune.core.errors import Refused
from foretune.step.weights import checksums
from tests.step.levers.deep_steps import DROPPING, LORA, assert_equal, deep_step, loss_and_gradients
from tests.step.levers.host_guard import HostGuard
from tests.step.levers.live_bytes import live_bytes
from tests.step.small_steps import SmallStep, made_batch

TinyPipeline = Callable[..., Path]

DEPTHS: dict[str, tuple[int, ...]] = {"flux": (2, 4), "sd3": (2, 3), "ddpm": ()}
SWAPPED = {"gradient_checkpointing": 1, "block_swap": 3}


@pytest.mark.parametrize("num_blocks", [1, 5, 57])
def test_the_asked_number_is_chosen_and_spread(num_blocks: int) -> None:
    for num_swapped in range(num_blocks + 1):
        chosen = chosen_to_swap(num_blocks, num_swapped)
        assert len(chosen) == num_swapped
        for n in range(num_blocks + 1):
            assert abs(sum(index < n for index in chosen) - n * num_swapped / num_blocks) < 1


@pytest.mark.parametrize(
    ("name", "precision", "more"),
    [
        ("flux", "fp32", {"block_swap_prefetch": 0}),
        ("flux", "bf16", {"checkpoint_segment": 2}),
        ("sd3", "bf16", {"checkpoint_segment": 3, "activation_offload": True}),
        ("ddpm", "bf16", {"channels_last": True}),
    ],
)
def test_gradients_are_bit_identical(
    name: str, precision: str, more: dict[str, Any], tiny_pipeline: TinyPipeline
) -> None:
    """And nothing computes with the weights that are on the host: forward, computed again, or backward."""
    guard = HostGuard()
    train = {"precision": precision}
    with guard.watching():
        small = deep_step(tiny_pipeline(name), DEPTHS[name], DROPPING, train=train, levers={**SWAPPED, **more})
        num_weights = guard.num_made
        with guard:
            found = loss_and_gradients(small)
    assert num_weights > 0
    if more.get("block_swap_prefetch") == 0:
        assert guard.num_read >= 2 * num_weights, (
            "each weight is copied for the forward pass and again for the backward"
        )
    layout = {"channels_last": True} if "channels_last" in more else {}
    assert_equal(
        found, loss_and_gradients(deep_step(tiny_pipeline(name), DEPTHS[name], DROPPING, train=train, levers=layout))
    )


@pytest.mark.parametrize("kind", ["lora", "dora", "lokr", "loha", "oft"])
def test_every_adapter(kind: str, tiny_pipeline: TinyPipeline) -> None:
    method = {"kind": kind, "block_size": 4} if kind == "oft" else {"kind": kind, "rank": 2}
    guard = HostGuard()
    with guard.watching():
        small = deep_step(tiny_pipeline("flux"), (1, 2), method, levers=SWAPPED)
        with guard:
            found = loss_and_gradients(small)
    assert_equal(found, loss_and_gradients(deep_step(tiny_pipeline("flux"), (1, 2), method)))


@pytest.mark.parametrize("numbers", ["int8", "float8", "float8-dynamic", "nf4", "int8-bnb", "float8-training"])
def test_every_quantised_base(numbers: str, tiny_pipeline: TinyPipeline) -> None:
    pytest.importorskip("torchao" if "bnb" not in numbers and numbers != "nf4" else "bitsandbytes")
    guard = HostGuard()
    with guard.watching():
        small = deep_step(
            tiny_pipeline("flux"), (1, 1), LORA, levers={**SWAPPED, "block_swap": 2}, quantize={"denoiser": numbers}
        )
        with guard:
            found = loss_and_gradients(small)
    expected = deep_step(tiny_pipeline("flux"), (1, 1), LORA, quantize={"denoiser": numbers})
    assert_equal(found, loss_and_gradients(expected))


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_the_running_block_and_those_copied_ahead_are_on_the_device(prefetch: int, tiny_pipeline: TinyPipeline) -> None:
    def needed(num_swapped: int) -> Any:
        levers = {"gradient_checkpointing": 1, "block_swap": num_swapped, "block_swap_prefetch": prefetch}
        return live_bytes(deep_step(tiny_pipeline("sd3", "3"), (6,), LORA, levers=levers))

    none, one, all_of_them = needed(0), needed(1), needed(6)
    small = deep_step(tiny_pipeline("sd3", "3"), (6,), LORA)
    sizes = [
        sum(p.nbytes for p in block.parameters() if not p.requires_grad)
        for block in small.family.blocks(small.step.denoiser)
    ]
    largest = max(sizes)
    last = sum(sizes[len(sizes) - prefetch :])
    assert all_of_them.kept == none.kept + last, "between the passes are those that the backward pass begins with"
    assert all_of_them.left == 0
    assert none.peak <= one.peak <= all_of_them.peak
    assert none.peak + prefetch * largest < all_of_them.peak <= none.peak + (prefetch + 1) * largest


def test_all_who_look_find_the_real_weights(tiny_pipeline: TinyPipeline) -> None:
    plain = deep_step(tiny_pipeline("flux"), DEPTHS["flux"], LORA)
    swapped = deep_step(tiny_pipeline("flux"), DEPTHS["flux"], LORA, levers=SWAPPED)
    loss_and_gradients(swapped)
    expected, found = plain.step.denoiser.state_dict(), swapped.step.denoiser.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert checksums(swapped.method.frozen()) == checksums(plain.method.frozen())
    assert list(swapped.step.trained) == list(plain.step.trained)
    with torch.no_grad():
        swapped.step.denoiser.eval()
        plain.step.denoiser.eval()
        batch = made_batch(plain.family, 1)
        assert torch.equal(swapped.step.loss(batch), plain.step.loss(batch))


def test_weights_come_back_after_an_error(tiny_pipeline: TinyPipeline) -> None:
    small = deep_step(tiny_pipeline("flux"), DEPTHS["flux"], LORA, levers={**SWAPPED, "block_swap": 6})
    before = {name: id(parameter) for name, parameter in small.step.denoiser.named_parameters()}
    block = small.family.blocks(small.step.denoiser)[3]

    def fail(*_: Any) -> None:
        raise RuntimeError("stopped inside")

    next(module for module in block.modules() if isinstance(module, nn.Linear)).register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="stopped inside"):
        loss_and_gradients(small)
    assert {name: id(parameter) for name, parameter in small.step.denoiser.named_parameters()} == before


def test_more_blocks_than_there_are(tiny_pipeline: TinyPipeline) -> None:
    with pytest.raises(Refused, match=r"this model has 6\. Nearest: levers\.block_swap=6"):
        deep_step(tiny_pipeline("flux"), DEPTHS["flux"], LORA, levers={**SWAPPED, "block_swap": 7})


@pytest.mark.gpu
@pytest.mark.parametrize("numbers", ["none", "int8"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"block_swap_prefetch": 0},
        {"block_swap_prefetch": 3},
        {"checkpoint_segment": 2, "activation_offload": True},
    ],
)
def test_on_a_gpu_the_weights_wait_in_page_locked_memory(
    numbers: str, more: dict[str, Any], tiny_pipeline: TinyPipeline
) -> None:
    # Fused attention adds up gradients in any order there, so that no two passes are alike.
    plain = {"attention": "math"}

    def step(levers: dict[str, Any]) -> SmallStep:
        asked: dict[str, Any] = {"train": {"precision": "bf16"}, "quantize": {"denoiser": numbers}}
        device = torch.device("cuda")
        return deep_step(tiny_pipeline("flux"), DEPTHS["flux"], DROPPING, device=device, levers=levers, **asked)

    small = step({**plain, **SWAPPED, **more})
    places = {(p.device.type, p.is_pinned()) for p in small.method.frozen().values()}
    assert places == {("cuda", False), ("cpu", True)}
    assert_equal(loss_and_gradients(small), loss_and_gradients(step(plain)))
    assert {p.device.type for p in small.step.trained.values()} == {"cuda"}
    assert len(checksums(small.method.frozen())) == len(small.method.frozen())
