"""Regional compile: one graph for all blocks of a kind, no part left out, the numbers the same but for rounding."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

from foretune.step.levers import applying, compiling
from foretune.step.levers.checkpointing import apply_checkpointing
from tests.step.levers.deep_steps import DROPPING, assert_equal, deep_step, difference, loss_and_gradients

TinyPipeline = Callable[..., Path]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """A narrow block whose dropout must draw what it would draw uncompiled."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.dropout = nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.5)

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = values + self.dropout(self.outer(torch.nn.functional.gelu(self.inner(values))))
        return out


def gradients_of(*, compiled: bool, checkpointed: bool) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    blocks = tuple(Block() for _ in range(3))
    if compiled:
        compiling.apply_compile(blocks)
    if checkpointed:
        apply_checkpointing([(block,) for block in blocks], keeps_rng=True)
    torch.manual_seed(1)
    values = torch.randn(4, 16, requires_grad=True)
    for block in blocks:
        values = block(values)
    loss = values.square().mean()
    loss.backward()
    return loss.detach(), [p.grad for block in blocks for p in block.parameters() if p.grad is not None]


@pytest.mark.takes_turns
def test_compiled_code_computes_the_same() -> None:
    """The real compiler, dropout and recomputation included; three equal blocks share one graph."""
    expected = gradients_of(compiled=False, checkpointed=False)
    for checkpointed in (False, True):
        found = gradients_of(compiled=True, checkpointed=checkpointed)
        assert torch.allclose(found[0], expected[0], rtol=1e-6)
        assert len(found[1]) == 12
        for one, other in zip(found[1], expected[1], strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-7)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.takes_turns
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "depths", "num_graphs", "levers"),
    [
        # Of each kind one whose input needs no gradient or is of another sort, and one for all others.
        ("flux", (3, 3), 4, {"checkpoint_segment": 2, "activation_offload": True}),
        ("flux", (3, 3), 4, {"block_swap": 2, "attention": "flash"}),
        ("sd3", (2, 2), 4, {}),
        ("ddpm", (), 9, {"channels_last": True}),
    ],
)
def test_every_family_without_a_break(
    name: str,
    depths: tuple[int, ...],
    num_graphs: int,
    levers: dict[str, Any],
    tiny_pipeline: TinyPipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Captured as for the real compiler and then run by torch's own operators, so that bits can be compared."""
    real = compiling.apply_compile
    monkeypatch.setattr(applying, "apply_compile", lambda blocks: real(blocks, backend="aot_eager"))
    layout = {"channels_last": True} if "channels_last" in levers else {}

    def found(**asked: Any) -> Any:
        return loss_and_gradients(deep_step(tiny_pipeline(name), depths, DROPPING, levers={**asked, **layout}))

    expected, compiled = found(), found(compile="regional", gradient_checkpointing=1, **levers)
    if name == "ddpm":  # convolutions are rounded otherwise
        assert max(difference(compiled, expected)) < 1e-5
    else:
        assert_equal(compiled, expected)
    assert counters["stats"]["unique_graphs"] == num_graphs
    assert not counters["graph_break"]


def test_a_block_that_cannot_be_compiled_is_an_error() -> None:
    class Talking(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return values * 2

    block = Talking()
    compiling.apply_compile((block,), backend="eager")
    with pytest.raises(Unsupported):
        block(torch.ones(2))


def test_names_stay_what_they_are() -> None:
    block = Block()
    names = list(block.state_dict())
    compiling.apply_compile((block,), backend="eager")
    assert list(block.state_dict()) == names
    assert not torch._dynamo.config.suppress_errors


def test_a_recomputation_in_another_thread_may_need_its_ninth_graph() -> None:
    """On a GPU autograd runs the backward pass in a thread of the device, where torch's global settings are the
    defaults: eight graphs for a function.
    """
    block = Block()
    compiling.apply_compile((block,), backend="eager")
    apply_checkpointing([(block,)], keeps_rng=False)
    loss = block(torch.ones(10, 16, requires_grad=True)).sum()
    torch._dynamo.reset()  # so that the recomputation needs a graph, after eight others
    for num_samples in range(2, 10):
        block(torch.ones(num_samples, 16))
    assert torch._dynamo.config.recompile_limit == 8
    with ThreadPoolExecutor(1) as device_thread:
        device_thread.submit(loss.backward).result()
    assert block.inner.weight.grad is not None
    assert block.inner.weight.grad.isfinite().all()
