"""LoKr on activations: peft's numbers and gradients, and nothing of a weight's size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoKrConfig
from peft.tuners.lokr.layer import Linear as LoKrLinear
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from foretune.step.methods.kronecker import KroneckerLinear
from foretune.step.methods.peft_configs import WHOLE_RANK

WIDTH_IN, WIDTH_OUT = 48, 96
RANKS = {"both whole": WHOLE_RANK, "larger one in two": 3}


def made(
    kind: Callable[..., Any],
    rank: int,
    factor: int = 4,
    *,
    both: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """A layer with an adapter whose matrices are all drawn, as none is at the start."""
    torch.manual_seed(0)
    base = nn.Linear(WIDTH_IN, WIDTH_OUT, dtype=dtype).requires_grad_(requires_grad=False)
    config = LoKrConfig(r=rank, alpha=2 * rank, decompose_factor=factor, decompose_both=both)
    layer = kind(base, "default", config=config, r=rank, alpha=2 * rank)
    for name, weight in layer.named_parameters():
        if "lokr" in name:
            nn.init.normal_(weight)
            weight.data = weight.data.to(dtype)
    # peft draws a number at each layer in training; its answers in evaluation are the same.
    return layer.train(mode=kind is KroneckerLinear)


def run(layer: Any, values: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The answer, and the gradients of input and adapter."""
    given = values.clone().requires_grad_()
    answer = layer(given)
    answer.square().sum().backward()
    assert given.grad is not None
    found = {name: weight.grad for name, weight in layer.named_parameters() if weight.grad is not None}
    return answer.detach(), {"input": given.grad, **found}


@pytest.mark.parametrize("factor", [4, 12, -1])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("rank", RANKS.values(), ids=RANKS)
def test_answers_and_gradients_are_those_of_peft(rank: int, factor: int, both: bool) -> None:
    values = torch.randn(2, 5, WIDTH_IN, generator=torch.Generator().manual_seed(1))
    own, theirs = (run(made(kind, rank, factor, both=both), values) for kind in (KroneckerLinear, LoKrLinear))
    torch.testing.assert_close(own[0], theirs[0])
    assert own[1].keys() == theirs[1].keys()
    assert len(own[1]) >= 3
    for name, gradient in own[1].items():
        torch.testing.assert_close(gradient, theirs[1][name], rtol=1e-4, atol=1e-3)


def kept(kind: Callable[..., Any]) -> list[Tensor]:
    """What the backward pass needs, but for the base's weight."""
    layer = made(kind, WHOLE_RANK)
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        layer(torch.randn(7, WIDTH_IN, requires_grad=True))
    return [tensor for tensor in found if tensor.data_ptr() != layer.base_layer.weight.data_ptr()]


def test_nothing_of_a_weights_size_is_kept() -> None:
    """And the control: peft keeps the update of the whole weight."""
    assert max(tensor.numel() for tensor in kept(KroneckerLinear)) < WIDTH_IN * WIDTH_OUT / 4
    assert max(tensor.numel() for tensor in kept(LoKrLinear)) == WIDTH_IN * WIDTH_OUT


def test_the_answer_has_the_type_of_the_base() -> None:
    layer = made(KroneckerLinear, WHOLE_RANK, dtype=torch.bfloat16)
    values = torch.randn(3, WIDTH_IN)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(values).dtype == layer.base_layer(values).dtype == torch.bfloat16


def test_an_adapter_that_is_off_or_merged_leaves_the_base_alone() -> None:
    layer = made(KroneckerLinear, WHOLE_RANK)
    values = torch.randn(3, WIDTH_IN)
    with torch.no_grad():
        alone, beside = layer.base_layer(values), layer(values)
        layer.enable_adapters(enabled=False)
        torch.testing.assert_close(layer(values), alone)
        layer.enable_adapters(enabled=True)
        layer.merge()
        torch.testing.assert_close(layer(values), beside, rtol=1e-4, atol=1e-3)
    assert not torch.allclose(alone, beside)


def test_in_evaluation_the_answer_is_peft_s_to_the_last_bit() -> None:
    values = torch.randn(3, WIDTH_IN, generator=torch.Generator().manual_seed(1))
    own, theirs = (made(kind, 3).eval() for kind in (KroneckerLinear, LoKrLinear))
    assert torch.equal(own(values), theirs(values))
    assert not torch.equal(own.train()(values), theirs(values)), "rounded otherwise"
