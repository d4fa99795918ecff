"""The learning rate by hand, and the optimizer's settings."""

import math

import pytest
import torch
from torch import nn

from foretune.choices.schedule import learning_rate
from foretune.choices.training import Optimizer
from foretune.step.optimizers.base import Direct
from foretune.step.optimizing import build_optimizer


def rates(num_steps: int, **choice: object) -> list[float]:
    optimizer = Optimizer.model_validate({"lr": 8.0, **choice})
    return [learning_rate(optimizer, step, num_steps) for step in range(num_steps)]


def test_constant() -> None:
    assert rates(3) == [8.0, 8.0, 8.0]


def test_warm_up_is_linear_and_its_last_step_has_the_full_rate() -> None:
    assert rates(6, warmup_steps=4) == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]


def test_linear() -> None:
    assert rates(4, schedule="linear") == [8.0, 6.0, 4.0, 2.0]
    assert rates(6, schedule="linear", warmup_steps=2) == [4.0, 8.0, 8.0, 6.0, 4.0, 2.0]


def test_cosine() -> None:
    expected = [8.0, 4 * (1 + math.cos(math.pi / 4)), 4.0, 4 * (1 + math.cos(3 * math.pi / 4))]
    assert rates(4, schedule="cosine") == pytest.approx(expected)
    assert rates(6, schedule="cosine", warmup_steps=2) == pytest.approx([4.0, 8.0, *expected])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_is_zero_after_the_last_step_and_not_before(schedule: str) -> None:
    choice = Optimizer.model_validate({"lr": 8.0, "schedule": schedule, "warmup_steps": 10})
    assert learning_rate(choice, 100, 100) == pytest.approx(0.0, abs=1e-12)
    assert learning_rate(choice, 500, 100) == pytest.approx(0.0, abs=1e-12)
    assert learning_rate(choice, 99, 100) > 0
    all_rates = [learning_rate(choice, step, 100) for step in range(10, 101)]
    assert all_rates == sorted(all_rates, reverse=True)


def test_warm_up_longer_than_the_training() -> None:
    assert rates(2, schedule="cosine", warmup_steps=4) == [2.0, 4.0]


def test_optimizer_has_what_was_asked_for() -> None:
    choice = Optimizer(lr=0.5, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3)
    weights = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))]
    optimizer = build_optimizer(choice, weights)
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, Direct)
    assert isinstance(optimizer.inner, torch.optim.AdamW)
    assert group["params"] == weights
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.5, (0.8, 0.95), 1e-6, 0.3)
