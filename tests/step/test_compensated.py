"""Kahan's sum in bf16: what plain AdamW loses is kept, down to the limit that the documentation names."""

import pytest
import torch
from torch import nn

from foretune.choices.training import Optimizer
from foretune.step.compensated import KahanAdamW
from foretune.step.optimizing import build_optimizer


def trained(lr: float, num_steps: int, *, compensation: str = "kahan", **choice: object) -> tuple[float, float]:
    """A weight of 1.0 in bf16 after so many steps with a gradient of 1, and the weight with its shift."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    asked = {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.0, "compensation": compensation, **choice}
    optimizer = build_optimizer(Optimizer.model_validate(asked), [weight])
    for _ in range(num_steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    shift = float(optimizer.state[weight]["shift"].double()) if compensation == "kahan" else 0.0
    return weight.item(), weight.item() + shift


def test_one_small_update_is_lost_without_and_kept_with_compensation() -> None:
    assert trained(1e-6, 1, compensation="none") == (1.0, 1.0)
    weight, with_shift = trained(1e-6, 1)
    assert weight == 1.0
    assert with_shift == pytest.approx(1 - 1e-6, abs=1e-8)


def test_small_updates_arrive_in_the_weight_in_time() -> None:
    assert trained(2e-5, 2000, compensation="none") == (1.0, 1.0)
    weight, with_shift = trained(2e-5, 2000)
    assert with_shift == pytest.approx(1 - 2000 * 2e-5, abs=2e-3)
    assert weight == pytest.approx(with_shift, abs=1 / 256)


def test_updates_below_the_limit_are_lost_even_so() -> None:
    """The shift is bf16 too: it stops growing before the weight takes notice."""
    weight, with_shift = trained(1e-6, 3000)
    assert weight == 1.0
    assert 1 - with_shift < 6e-4


def test_weight_decay_goes_through_the_shift() -> None:
    weight, with_shift = trained(1e-2, 1, weight_decay=0.01)
    _, without = trained(1e-2, 1, weight_decay=0.0)
    assert weight != 1.0
    assert with_shift - without == pytest.approx(-1e-4, abs=4e-5)  # the shift of 1e-2 is rounded to 6e-5


def test_it_is_adamw_where_nothing_is_rounded() -> None:
    """In fp32 the shift is next to nothing, and the weights are those of torch's AdamW."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(64, generator=generator)
    gradients = torch.randn(20, 64, generator=generator)
    results = []
    for kind in (torch.optim.AdamW, KahanAdamW):
        weight = nn.Parameter(start.clone())
        optimizer = kind([weight], lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_states_have_the_type_of_their_weight_and_all_names() -> None:
    weights = [nn.Parameter(torch.zeros(3, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32)]
    optimizer = build_optimizer(Optimizer(compensation="kahan"), weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for weight in weights:
        state = optimizer.state[weight]
        assert sorted(state) == ["exp_avg", "exp_avg_sq", "shift", "step"]
        assert {state[name].dtype for name in ("exp_avg", "exp_avg_sq", "shift")} == {weight.dtype}
        assert state["step"].dtype == torch.float32


def test_a_weight_without_a_gradient_is_left_alone() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = build_optimizer(Optimizer(compensation="kahan"), [weight])
    optimizer.step()
    assert optimizer.state[weight] == {}
    assert weight.tolist() == [1.0, 1.0]
