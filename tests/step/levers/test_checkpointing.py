"""Checkpointing: the chosen blocks compute twice, and nothing else changes, not by a bit."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from foretune.catalog import TRAINABLE
from foretune.choices.checkpointing import chosen_blocks
from foretune.models import Family
from foretune.models.locating import open_family
from foretune.step.levers.checkpointing import apply_checkpointing
from tests.step.levers.deep_steps import DROPPING, assert_equal, deep_step, loss_and_gradients
from tests.step.levers.live_bytes import live_bytes
from tests.step.small_steps import gradients, made_batch, small_step

TinyPipeline = Callable[..., Path]


@given(num_blocks=st.integers(0, 200), share=st.fractions(0, 1, max_denominator=1000).map(float))
def test_the_share_of_blocks_is_chosen_and_spread(num_blocks: int, share: float) -> None:
    chosen = chosen_blocks(num_blocks, share)
    assert len(chosen) == math.floor(num_blocks * share + 1e-9)
    assert list(chosen) == sorted(set(chosen))
    assert all(0 <= index < num_blocks for index in chosen)
    # Spread: among the first n blocks there is the same share of them, to a block.
    for n in range(num_blocks + 1):
        assert abs(sum(index < n for index in chosen) - n * share) < 1 + 1e-6


@pytest.mark.parametrize(
    ("num_blocks", "share", "expected"),
    [(4, 0.0, ()), (4, 1.0, (0, 1, 2, 3)), (4, 0.5, (1, 3)), (6, 1 / 3, (2, 5)), (5, 0.5, (1, 3)), (9, 0.1, ())],
)
def test_chosen_blocks_by_hand(num_blocks: int, share: float, expected: tuple[int, ...]) -> None:
    assert chosen_blocks(num_blocks, share) == expected


def count_forwards(family: Family, denoiser: Any) -> Counter[int]:
    """Counts how often each block computes. Put in before checkpointing, which wraps what it finds."""
    counts: Counter[int] = Counter()
    for index, block in enumerate(family.blocks(denoiser)):

        def counted(*args: Any, index: int = index, forward: Any = block.forward, **kwargs: Any) -> Any:
            counts[index] += 1
            return forward(*args, **kwargs)

        block.forward = counted
    return counts


@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize("method", ["full", {"kind": "lora", "rank": 2}])
def test_gradients_are_bit_identical(name: str, method: Any, tiny_pipeline: TinyPipeline) -> None:
    found = {}
    for share in (0.0, 0.5, 1.0):
        small = small_step(tiny_pipeline(name), method, levers={"gradient_checkpointing": share})
        found[share] = gradients(small.step, made_batch(small.family, 2))
    for share in (0.5, 1.0):
        assert found[share].keys() == found[0.0].keys()
        for key, gradient in found[share].items():
            assert torch.equal(gradient, found[0.0][key]), (share, key)


@pytest.mark.parametrize("name", TRAINABLE)
def test_the_chosen_blocks_and_no_others_compute_twice(name: str, tiny_pipeline: TinyPipeline) -> None:
    folder = tiny_pipeline(name)
    family = open_family(folder)
    denoiser = family.load_denoiser(folder, torch.float32)
    names = list(denoiser.state_dict())
    blocks = family.blocks(denoiser)
    counts = count_forwards(family, denoiser)
    chosen = chosen_blocks(len(blocks), 0.5)
    apply_checkpointing([(blocks[index],) for index in chosen], keeps_rng=False)
    small = small_step(folder)
    small.step.denoiser = denoiser.train()
    small.step.loss(made_batch(family, 1)).backward()
    assert counts == {index: 2 if index in chosen else 1 for index in range(len(blocks))}
    assert list(denoiser.state_dict()) == names


def test_dropout_is_drawn_again_as_it_was(tiny_pipeline: TinyPipeline) -> None:
    method = {"kind": "lora", "rank": 2, "dropout": 0.5}
    found = []
    for share in (0.0, 1.0):
        small = small_step(tiny_pipeline("flux"), method, levers={"gradient_checkpointing": share})
        with torch.no_grad():  # B begins at zero, where no gradient reaches A
            for parameter in small.step.trained.values():
                parameter.fill_(0.01)
        torch.manual_seed(1)
        found.append(gradients(small.step, made_batch(small.family, 2)))
    for key in found[0]:
        assert torch.equal(found[0][key], found[1][key]), key


def test_recomputing_without_the_random_state_would_be_noticed() -> None:
    """The control of the test above: gradients do depend on it."""

    def gradient(*, keeps_rng: bool) -> torch.Tensor:
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))
        apply_checkpointing([(block,)], keeps_rng=keeps_rng)
        torch.manual_seed(1)
        block(torch.ones(4, 64)).square().sum().backward()
        first = block[0]
        assert isinstance(first, nn.Linear)
        assert first.weight.grad is not None
        return first.weight.grad

    assert not torch.equal(gradient(keeps_rng=True), gradient(keeps_rng=False))


@pytest.mark.parametrize(("name", "depths"), [("flux", (2, 2)), ("sd3", (1, 2))])
def test_feed_forward_parts_alone(name: str, depths: tuple[int, ...], tiny_pipeline: TinyPipeline) -> None:
    """They compute twice, bit for bit the same; attention computes once. It saves less than whole blocks do."""
    parts = {"gradient_checkpointing": 1, "checkpoint_parts": "feed_forward"}
    small = deep_step(tiny_pipeline(name), depths, DROPPING, levers=parts)
    blocks = small.family.blocks(small.step.denoiser)
    counts: Counter[str] = Counter()
    for block in blocks:
        for kind, modules in (
            ("feed-forward", small.family.feed_forwards(block)),
            ("attention", (block.get_submodule("attn"),)),
        ):
            for module in modules:
                inner = next(child for child in module.modules() if isinstance(child, nn.Linear))
                inner.register_forward_hook(lambda *_, kind=kind: counts.update([kind]))
    expected = loss_and_gradients(deep_step(tiny_pipeline(name), depths, DROPPING))
    assert_equal(loss_and_gradients(small), expected)
    num_parts = sum(len(small.family.feed_forwards(block)) for block in blocks)
    assert num_parts > 0
    assert counts == {"feed-forward": 2 * num_parts, "attention": len(blocks)}
    kept, of_parts, of_blocks = (
        live_bytes(deep_step(tiny_pipeline(name), depths, DROPPING, levers=levers)).kept
        for levers in ({}, parts, {"gradient_checkpointing": 1})
    )
    assert kept > of_parts > of_blocks


def test_tensors_given_by_name_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch keeps the random state of devices whose tensors it is given in order, and knows of no others."""
    seen: list[Any] = []

    def checkpoint(function: Any, *tensors: Any, **_: Any) -> Any:
        seen.extend(tensors)
        return function(*tensors)

    monkeypatch.setattr("foretune.step.levers.checkpointing.checkpoint", checkpoint)

    class Block(nn.Module):
        def forward(self, values: torch.Tensor, scale: float, pair: tuple[torch.Tensor, None]) -> torch.Tensor:
            assert pair[1] is None
            return values * scale + pair[0]

    block = Block()
    apply_checkpointing([(block,)], keeps_rng=True)
    values, other = torch.ones(2), torch.ones(2)
    out = block(values=values, scale=2.0, pair=(other, None))
    assert torch.equal(out, torch.full((2,), 3.0))
    assert [id(tensor) for tensor in seen] == [id(values), id(other)]
