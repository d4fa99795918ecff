"""Segments: neighbours compute again together, and nothing else changes, not by a bit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import noop_context_fn

from foretune.step.levers.segments import ContextPair, Segment
from tests.step.levers.deep_steps import DROPPING, LORA, assert_equal, deep_step, loss_and_gradients
from tests.step.levers.live_bytes import live_bytes

TinyPipeline = Callable[..., Path]

SEGMENTS = (
    {"checkpoint_segment": 2},
    {"checkpoint_segment": 3},
    {"checkpoint_segment": 3, "checkpoint_stride": 4},
    {"checkpoint_stride": 4},
)


@pytest.mark.parametrize(
    ("name", "variant", "depths", "method", "precision"),
    [
        ("flux", "dev", (3, 7), DROPPING, "bf16"),
        ("flux", "dev", (3, 4), "full", "fp32"),
        ("sd3", "3", (7,), LORA, "fp32"),
        ("sd3", "3", (5,), "full", "bf16"),
        ("sd3", "3.5", (3, 2), DROPPING, "bf16"),
    ],
)
def test_gradients_are_bit_identical(
    name: str, variant: str, depths: tuple[int, ...], method: Any, precision: str, tiny_pipeline: TinyPipeline
) -> None:
    """Odd ones out included: no depth here is a multiple of the widths."""

    def found(levers: dict[str, Any]) -> Any:
        train = {"precision": precision}
        return loss_and_gradients(deep_step(tiny_pipeline(name, variant), depths, method, train=train, levers=levers))

    expected = found({})
    for segments in SEGMENTS:
        assert_equal(found({"gradient_checkpointing": 1, **segments}), expected)


def test_wider_segments_keep_less_and_hold_more(tiny_pipeline: TinyPipeline) -> None:
    def needed(**levers: int) -> Any:
        return live_bytes(
            deep_step(tiny_pipeline("sd3", "3"), (6,), LORA, levers={"gradient_checkpointing": 1, **levers})
        )

    single, pairs, threes = needed(), needed(checkpoint_segment=2), needed(checkpoint_segment=3)
    assert single.kept > pairs.kept > threes.kept
    assert single.peak < pairs.peak < threes.peak
    # Six inputs, three or two: what is saved by one step is what the next saves three times.
    assert single.kept - pairs.kept == 3 * (pairs.kept - threes.kept)
    assert single.left == pairs.left == threes.left == 0


class Block(nn.Module):
    """Counts its forward passes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.num_calls = 0

    def forward(self, values: Tensor, shift: Tensor | None = None) -> Tensor:
        self.num_calls += 1
        out: Tensor = values + self.outer(torch.relu(self.inner(values)))
        return out if shift is None else out + shift


def blocks_of(count: int) -> tuple[Block, ...]:
    torch.manual_seed(0)
    return tuple(Block() for _ in range(count))


def gradients_of(blocks: tuple[Block, ...]) -> list[Tensor | None]:
    return [parameter.grad for block in blocks for parameter in block.parameters()]


def run(blocks: tuple[Block, ...], between: Callable[[Tensor], Tensor] = lambda values: values) -> Tensor:
    torch.manual_seed(1)
    values = torch.randn(3, 8, requires_grad=True)
    shift = torch.randn(3, 8)
    for block in blocks:
        values = between(block(values, shift=shift))
    return values


def doubled(values: Tensor) -> Tensor:
    return values * 2


def doubled_in_place(values: Tensor) -> Tensor:
    return values.mul_(2)


@pytest.mark.parametrize("between", [doubled, doubled_in_place])
def test_what_the_model_does_between_blocks_counts(between: Callable[[Tensor], Tensor]) -> None:
    """Then a block is given something else than the one before returned, though it may be the same Python object."""
    plain, joined = blocks_of(3), blocks_of(3)
    Segment(joined, keeps_rng=False, contexts=noop_context_fn)
    for blocks in (plain, joined):
        run(blocks, between).square().sum().backward()
    for expected, found in zip(gradients_of(plain), gradients_of(joined), strict=True):
        assert expected is not None
        assert found is not None
        assert torch.equal(expected, found)


def test_all_compute_twice_at_the_first_need_of_any() -> None:
    blocks = blocks_of(3)
    Segment(blocks, keeps_rng=False, contexts=noop_context_fn)
    loss = run(blocks).square().sum()
    assert [block.num_calls for block in blocks] == [1, 1, 1]
    loss.backward()
    assert [block.num_calls for block in blocks] == [2, 2, 2]


def test_without_gradients_nothing_is_noted() -> None:
    blocks = blocks_of(2)
    Segment(blocks, keeps_rng=False, contexts=noop_context_fn)
    with torch.no_grad():
        blocks[1](torch.ones(1, 8))  # alone and out of order, as nobody will ask for it again
        assert not run(blocks).requires_grad


def test_blocks_out_of_order_are_an_error() -> None:
    blocks = blocks_of(2)
    Segment(blocks, keeps_rng=False, contexts=noop_context_fn)
    with pytest.raises(AssertionError, match="in their order"):
        blocks[1](torch.ones(1, 8))


def test_a_block_that_computes_something_else_the_second_time_is_an_error() -> None:
    blocks = blocks_of(2)
    Segment(blocks, keeps_rng=False, contexts=noop_context_fn)
    loss = run(blocks).square().sum()
    blocks[0].inner = nn.Linear(8, 4)
    blocks[0].outer = nn.Linear(4, 8)
    with pytest.raises(AssertionError, match="something else"):
        loss.backward()


def test_contexts_surround_each_block_both_times() -> None:
    heard: list[str] = []

    @contextmanager
    def telling(text: str) -> Iterator[None]:
        heard.append(text)
        yield

    def contexts() -> ContextPair:
        return telling("first"), telling("again")

    blocks = blocks_of(2)
    Segment(blocks, keeps_rng=False, contexts=contexts)
    loss = run(blocks).sum()
    assert heard == ["first", "first"]
    loss.backward()
    assert heard == ["first", "first", "again", "again"]
    assert isinstance(noop_context_fn()[0], nullcontext)
