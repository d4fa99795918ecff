"""What an optimizer's numbers cost: states of 8 bits beside those of 32, and bf16 weights whose updates are too small.

Each pair trains the same tiny FLUX, all weights of it, on the same batches from the same start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import ProofSize
from tests.proofs.conftest import TinyModels
from tests.step.small_steps import SmallStep, made_batch, small_step

pytestmark = pytest.mark.proof

_NUM_BATCHES = 4
_BETAS = (0.9, 0.99)
_SMALLEST_IN_8_BITS = 4096
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Trajectory:
    """A training: where it began and ended, and the loss of each step."""

    start: Weights
    end: Weights
    """The weights as they are used."""
    exact: Weights
    """With what is kept of their updates beside them."""
    losses: list[float]
    first_loss: float
    final_loss: float
    """Over all batches, before the first step and after the last."""

    def num_weights(self) -> int:
        return sum(weight.numel() for weight in self.start.values())

    def num_changed(self) -> int:
        return sum(int((self.end[name] != start).sum()) for name, start in self.start.items())


def trained(models: TinyModels, num_steps: int, lr: float, **sections: Any) -> Trajectory:
    small = small_step(models.path("flux"), "full", **sections)
    weights = small.step.trained
    with torch.no_grad():
        for weight in weights.values():
            weight.copy_(weight.bfloat16())  # every training begins where one in bf16 can
    start = {name: weight.detach().float().clone() for name, weight in weights.items()}
    batches = [made_batch(small.family, 2, seed=index) for index in range(_NUM_BATCHES)]

    @torch.no_grad()
    def loss() -> float:
        return sum(float(small.step.loss(batch)) for batch in batches) / _NUM_BATCHES

    first_loss = loss()
    losses = [float(small.step(i, lr, [batches[i % _NUM_BATCHES]], 1).loss) for i in range(num_steps)]
    end = {name: weight.detach().float() for name, weight in weights.items()}
    return Trajectory(start, end, _exact(small, end), losses, first_loss, loss())


def _exact(small: SmallStep, end: Weights) -> Weights:
    found = {}
    for name, weight in small.step.trained.items():
        shift = small.step.optimizer.save(weight).get("shift")
        found[name] = end[name] if shift is None else end[name] + shift.float()
    return found


def moved(trajectory: Trajectory, end: Weights) -> Tensor:
    return torch.cat([(end[name] - start).flatten() for name, start in trajectory.start.items()]).double()


@pytest.mark.parametrize(("kind", "lr"), [("adamw", 1e-4), ("lion", 1e-5)])
def test_states_of_8_bits_train_like_those_of_32(
    kind: str, lr: float, tiny_models: TinyModels, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    num_steps = proof_size(100, 20)
    full, eight_bit = (
        trained(tiny_models, num_steps, lr, optimizer={"kind": name, "betas": _BETAS}) for name in (kind, f"{kind}8bit")
    )
    differences = [abs(a - b) / a for a, b in zip(full.losses, eight_bit.losses, strict=True)]
    way, other_way = (moved(run, run.end) for run in (full, eight_bit))
    distance = float((way - other_way).norm() / way.norm())
    num_low = sum(w.numel() for w in full.start.values() if w.numel() >= _SMALLEST_IN_8_BITS)
    report_figure(
        f"{kind}8bit against {kind}, {num_steps} steps: loss from {full.first_loss:.4f} to {full.final_loss:.4f} in 32 "
        f"bits and {eight_bit.final_loss:.4f} in 8, at most {max(differences):.2%} apart at any step; weights "
        f"{distance:.1%} of the way apart; {num_low / full.num_weights():.0%} of the weights have 8-bit states"
    )
    assert num_low > 0.5 * full.num_weights()
    assert distance > 0, "both have the same states"
    assert full.final_loss < 0.99 * full.first_loss, "a training that goes nowhere compares nothing"
    assert max(differences) < 0.01
    assert distance < 0.1


@pytest.mark.takes_turns
def test_updates_too_small_for_bf16_are_lost_or_kept(
    tiny_models: TinyModels, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    """At a rate of 1e-6 an update is far below 1/256 of most weights."""
    num_steps, lr = proof_size(500, 60), 1e-6
    settings = {"betas": _BETAS, "weight_decay": 0.0}

    def run(weights: str, **optimizer: Any) -> Trajectory:
        train = {"precision": "bf16", "weight_dtype": weights}
        return trained(tiny_models, num_steps, lr, train=train, optimizer={**settings, **optimizer})

    full = run("fp32")
    way = moved(full, full.end)
    distance, along = {}, {}
    figures = [f"{num_steps} steps at {lr:g}: loss {full.first_loss:.5f} at first, {full.final_loss:.5f} in fp32"]
    for name in ("none", "kahan", "stochastic"):
        low = run("bf16", compensation=name)
        exact = moved(low, low.exact)
        distance[name] = float((exact - way).norm() / way.norm())
        along[name] = float(exact @ way / (way @ way))
        figures.append(
            f"{name}: {low.num_changed() / low.num_weights():.1%} of the weights changed, {along[name]:.1%} of the way "
            f"made, {distance[name]:.1%} of it from the fp32 weights, loss {low.final_loss:.5f}"
        )
    report_figure("; ".join(figures))
    assert full.num_changed() > 0.99 * full.num_weights()
    # Lost: the weights are as far from where fp32 went as if there had been no training.
    assert along["none"] < 0.05
    assert distance["none"] == pytest.approx(1, abs=0.05)
    # Kept: the sum of a weight and its shift is near where fp32 is; the shift, too, has only the bits of bf16.
    assert along["kahan"] == pytest.approx(1, abs=0.05)
    assert distance["kahan"] < 0.2
    # Kept on average: single weights are up to a whole bf16 number off, all together they go the way.
    assert along["stochastic"] == pytest.approx(1, abs=0.1)
