"""Rounding by chance: right on average, the same whenever it is repeated, and other for each weight and step."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretune.choices.training import Optimizer
from foretune.step.optimizers.stochastic import StochasticAdamW, _round_into
from foretune.step.optimizing import build_optimizer


def rounded(value: float, num: int, seed: int = 0) -> Tensor:
    low = torch.empty(num, dtype=torch.bfloat16)
    _round_into(low, torch.full((num,), value), torch.Generator().manual_seed(seed))
    return low.float()


@pytest.mark.parametrize("value", [1 + 1 / 512, 1 + 1e-5, -3.0001, 1e-30, 123456.0])
def test_right_on_average_and_never_further_than_the_next_number(value: float) -> None:
    found = rounded(value, 200_000)
    below, above = found.min().item(), found.max().item()
    assert below <= value <= above
    assert len(found.unique()) <= 2
    gap = above - below
    # The spread of a mean of so many draws is at most gap / 2 / sqrt(200,000).
    assert found.double().mean().item() == pytest.approx(value, abs=6 * gap / 900, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, float("inf"), 2.0**-130])
def test_what_bf16_can_hold_is_kept(value: float) -> None:
    assert set(rounded(value, 1000).tolist()) == {value}


def updated(num_steps: int, *, seed: int = 0, first: int = 0, lr: float = 2e-5) -> Tensor:
    weight = nn.Parameter(torch.ones(20_000, dtype=torch.bfloat16))
    optimizer = StochasticAdamW([weight], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, seed=seed, first=first)
    for _ in range(num_steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return weight.detach().float()


def test_small_updates_arrive_on_average() -> None:
    """Each of 100 updates is 1/195 of the distance to the next number, and to the nearest would all be lost."""
    # The spread of the mean is 2e-5: 0.7 roundings of 1/256 for each of 20,000 weights.
    assert updated(100).mean().item() == pytest.approx(1 - 100 * 2e-5, abs=1e-4)


def test_average_of_squares_falls_where_rounding_to_the_nearest_keeps_it() -> None:
    means = {}
    for compensation in ("none", "stochastic"):
        weight = nn.Parameter(torch.ones(20_000, dtype=torch.bfloat16))
        updater = build_optimizer(Optimizer(lr=1e-4, compensation=compensation), [weight])
        for step in range(101):
            weight.grad = torch.full_like(weight, 1.0 if step == 0 else 0.0)
            updater.step()
        means[compensation] = updater.save(weight)["exp_avg_sq"].float().mean().item()
    assert means["stochastic"] == pytest.approx(1e-3 * 0.999**100, rel=0.01)
    assert means["none"] == pytest.approx(1e-3, rel=0.01)


def test_bits_are_a_function_of_seed_step_and_weight() -> None:
    same = updated(3)
    assert torch.equal(same, updated(3))
    assert not torch.equal(same, updated(3, seed=1))
    assert not torch.equal(same, updated(3, first=1))


def test_each_step_and_each_weight_is_rounded_by_other_bits() -> None:
    weights = [nn.Parameter(torch.ones(20_000, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = StochasticAdamW(weights, lr=1e-3, betas=(0.0, 0.9), eps=1e-8, weight_decay=0, seed=0)
    moved = []
    for _ in range(2):
        for weight in weights:
            with torch.no_grad():
                weight.fill_(1.0)
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        moved += [weight != 1 for weight in weights]
    shares = [mask.float().mean().item() for mask in moved]
    assert shares == pytest.approx([0.256] * 4, abs=0.03)  # 1e-3 of a distance of 1/256
    for index, one in enumerate(moved):
        for other in moved[:index]:
            both = (one & other).float().mean().item()
            assert both == pytest.approx(0.256**2, abs=0.02)


def test_states_are_bf16_and_nothing_is_kept_of_the_bits() -> None:
    weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    updater = build_optimizer(Optimizer(compensation="stochastic"), [weight])
    weight.grad = torch.ones_like(weight)
    updater.step()
    saved = updater.save(weight)
    assert sorted(saved) == ["exp_avg", "exp_avg_sq", "step"]
    assert {saved[name].dtype for name in ("exp_avg", "exp_avg_sq")} == {torch.bfloat16}


def test_weights_that_a_model_keeps_in_fp32_are_updated_exactly() -> None:
    """As by torch's own AdamW, over several steps, so that the moments are right, too."""
    generator = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(50, generator=generator), torch.randn(5, 50, generator=generator)
    settings: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    weights = [nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [StochasticAdamW([weights[0]], seed=0, **settings), torch.optim.AdamW([weights[1]], **settings)]
    for gradient in gradients:
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(*weights)
