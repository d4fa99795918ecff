"""Objectives against numbers worked out by hand, against the schedulers that sample, and at the ends of their range."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from hypothesis import given
from hypothesis import strategies as st

from foretune.choices.training import ObjectiveChoice
from foretune.models.locating import open_family
from foretune.models.objectives import Epsilon, FlowMatching, Objective

Density = Literal["uniform", "logit_normal", "mode"]
Weighting = Literal["none", "sigma_sqrt", "cosmap"]
DENSITIES: tuple[Density, ...] = ("uniform", "logit_normal", "mode")
WEIGHTINGS: tuple[Weighting, ...] = ("none", "sigma_sqrt", "cosmap")
# Evenly spread draws: what a density makes of them are its quantiles, without any noise.
NUM_DRAWS = 100_000
EVEN_DRAWS = (torch.arange(NUM_DRAWS, dtype=torch.float64) + 0.5) / NUM_DRAWS


def flow(density: Density = "uniform", weighting: Weighting = "none", shift: float = 1.0, **more: Any) -> FlowMatching:
    return FlowMatching(density=density, weighting=weighting, shift=shift, **more)


def share_below(levels: torch.Tensor, level: float) -> float:
    return float((levels <= level).double().mean())


# ---- epsilon


def test_epsilon_by_hand() -> None:
    objective = Epsilon(num_levels=2, beta_start=0.1, beta_end=0.2)
    clean, noise = torch.full((2, 1, 1, 1), 3.0), torch.full((2, 1, 1, 1), -2.0)
    level = torch.tensor([0, 1])
    # Kept shares: 0.9, then 0.9 * 0.8 = 0.72.
    expected = [math.sqrt(0.9) * 3 - math.sqrt(0.1) * 2, math.sqrt(0.72) * 3 - math.sqrt(0.28) * 2]
    assert objective.noisy(clean, noise, level).flatten().tolist() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(objective.target(clean, noise, level), noise)
    assert objective.weight(level).tolist() == [1.0, 1.0]
    assert torch.equal(objective.time(level), level)


def test_epsilon_noise_is_the_schedulers() -> None:
    scheduler = DDPMScheduler(num_train_timesteps=1000, beta_start=1e-4, beta_end=0.02, beta_schedule="linear")
    clean, noise = torch.randn(1000, 3, 2, 2), torch.randn(1000, 3, 2, 2)
    level = torch.arange(1000)
    assert torch.equal(Epsilon().noisy(clean, noise, level), scheduler.add_noise(clean, noise, level))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_epsilon_levels_are_drawn_evenly_and_stay_in_range(dtype: torch.dtype) -> None:
    below_one = torch.nextafter(torch.tensor(1.0, dtype=dtype), torch.tensor(0.0, dtype=dtype))
    ends = Epsilon().noise_level(torch.stack([torch.zeros((), dtype=dtype), below_one]))
    assert ends.tolist() == [0, 999]
    counts = torch.bincount(Epsilon().noise_level(EVEN_DRAWS), minlength=1000)
    assert counts.tolist() == [NUM_DRAWS // 1000] * 1000


# ---- flow matching


def test_flow_matching_by_hand() -> None:
    objective = flow()
    clean, noise = torch.full((2, 1, 1, 1), 3.0), torch.full((2, 1, 1, 1), -2.0)
    level = torch.tensor([0.25, 1.0])
    assert objective.noisy(clean, noise, level).flatten().tolist() == [0.75 * 3 - 0.25 * 2, -2.0]
    assert objective.target(clean, noise, level).flatten().tolist() == [-5.0, -5.0]
    assert objective.time(level).tolist() == [250.0, 1000.0]


def test_velocity_leads_from_the_sample_to_the_noise() -> None:
    """Following the target from any level arrives at the clean sample: what the sampler does with a prediction."""
    objective = flow()
    clean, noise, level = torch.randn(4, 2, 3, 3), torch.randn(4, 2, 3, 3), torch.tensor([0.1, 0.4, 0.7, 1.0])
    noisy, velocity = objective.noisy(clean, noise, level), objective.target(clean, noise, level)
    torch.testing.assert_close(noisy - level.view(-1, 1, 1, 1) * velocity, clean)


@pytest.mark.parametrize(
    ("shift", "draw", "level"), [(1.0, 0.3, 0.3), (3.0, 0.5, 0.75), (3.0, 0.25, 0.5), (0.5, 0.5, 1 / 3)]
)
def test_shift_by_hand(shift: float, draw: float, level: float) -> None:
    assert float(flow(shift=shift).noise_level(torch.tensor([draw]))) == pytest.approx(level, rel=1e-6)


def test_shift_is_the_samplers() -> None:
    """Levels that are even before the shift become the levels the model samples at."""
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0)
    even = torch.linspace(1, 1000, 1000, dtype=torch.float64).flip(0) / 1000
    ours = flow(shift=3.0).noise_level(even)
    torch.testing.assert_close(ours[1:], scheduler.sigmas[1:].to(ours), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (-0.5, 1.0), (0.8, 0.6)])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_logit_normal_density(mean: float, deviation: float, shift: float) -> None:
    levels = flow("logit_normal", shift=shift, logit_mean=mean, logit_std=deviation).noise_level(EVEN_DRAWS)
    for level in (0.1, 0.3, 0.5, 0.75, 0.95):
        unshifted = level / (shift - (shift - 1) * level)
        logit = math.log(unshifted / (1 - unshifted))
        expected = NormalDist(mean, deviation).cdf(logit)
        assert share_below(levels, level) == pytest.approx(expected, abs=2e-4)


def test_logit_normal_integrates_to_its_density() -> None:
    """A histogram against the density of arXiv:2403.03206, eq. 19, integrated numerically."""
    mean, deviation = -0.5, 1.2
    levels = flow("logit_normal", logit_mean=mean, logit_std=deviation).noise_level(EVEN_DRAWS)
    edges = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    for low, high in itertools.pairwise(edges.tolist()):
        t = torch.linspace(low, high, 201, dtype=torch.float64)
        logit = torch.log(t / (1 - t))
        density = torch.exp(-((logit - mean) ** 2) / (2 * deviation**2)) / (
            deviation * math.sqrt(2 * math.pi) * t * (1 - t)
        )
        expected = float(torch.trapezoid(density, t))
        assert share_below(levels, high) - share_below(levels, low) == pytest.approx(expected, abs=1e-4)


def test_mode_density_by_hand() -> None:
    """Scale 0 is even; otherwise the density is 1 / (1 - s (pi / 2 - 1)) in the middle and 1 / (1 + s) at the ends."""
    even = flow("mode", mode_scale=0.0).noise_level(EVEN_DRAWS)
    assert share_below(even, 0.3) == pytest.approx(0.3, abs=1e-4)
    scale, width = 1.29, 0.002
    levels = flow("mode", mode_scale=scale).noise_level(EVEN_DRAWS)
    middle = (share_below(levels, 0.5 + width) - share_below(levels, 0.5 - width)) / (2 * width)
    assert middle == pytest.approx(1 / (1 - scale * (math.pi / 2 - 1)), rel=0.01)
    for end in (0.01, 0.98):
        density = (share_below(levels, end + 0.01) - share_below(levels, end)) / 0.01
        assert density == pytest.approx(1 / (1 + scale), rel=0.03)
    assert share_below(levels, 0.5) == pytest.approx(0.5, abs=1e-4)


def test_uniform_density() -> None:
    levels = flow().noise_level(EVEN_DRAWS)
    for level in (0.01, 0.25, 0.9):
        assert share_below(levels, level) == pytest.approx(level, abs=1e-4)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("none", [1.0, 1.0, 1.0]),
        ("sigma_sqrt", [16.0, 4.0, 1.0]),
        ("cosmap", [16 / (5 * math.pi), 4 / math.pi, 2 / math.pi]),
    ],
)
def test_weights_by_hand(weighting: Weighting, expected: list[float]) -> None:
    level = torch.tensor([0.25, 0.5, 1.0])
    assert flow(weighting=weighting).weight(level).tolist() == pytest.approx(expected, rel=1e-6)


def test_cosmap_weights_are_a_density() -> None:
    level = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    assert float(torch.trapezoid(flow(weighting="cosmap").weight(level), level)) == pytest.approx(1.0, abs=1e-6)


@given(
    density=st.sampled_from(DENSITIES),
    weighting=st.sampled_from(WEIGHTINGS),
    shift=st.floats(0.05, 20),
    double=st.booleans(),
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_levels_stay_in_range(
    density: Density, weighting: Weighting, shift: float, double: bool, draws: list[float]
) -> None:
    dtype = torch.float64 if double else torch.float32
    below_one = torch.nextafter(torch.tensor(1.0, dtype=dtype), torch.tensor(0.0, dtype=dtype))
    uniform = torch.cat([torch.zeros(1, dtype=dtype), below_one[None], torch.tensor(draws, dtype=dtype)])
    objective = flow(density, weighting, shift)
    level = objective.noise_level(uniform)
    assert bool((level >= 1 / objective.num_levels).all())
    assert bool((level <= 1).all())
    assert bool(objective.weight(level).isfinite().all())
    assert level.shape == uniform.shape


# ---- what a family makes of what was left out


@pytest.mark.parametrize(
    ("family", "variant", "expected"),
    [
        ("ddpm", "cifar10", Epsilon(num_levels=1000, beta_start=1e-4, beta_end=0.02)),
        ("sd3", "3.5", flow("logit_normal", shift=3.0)),
        # Dev's shift depends on the image's size when sampling; its training draws levels evenly.
        ("flux", "dev", flow("uniform", shift=1.0)),
        ("flux", "schnell", flow("uniform", shift=1.0)),
    ],
)
def test_own_objective(family: str, variant: str, expected: Objective, tiny_pipeline: Callable[..., Path]) -> None:
    assert open_family(tiny_pipeline(family, variant)).objective(ObjectiveChoice()) == expected


@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_asked_objective(family: str, tiny_pipeline: Callable[..., Path]) -> None:
    choice = ObjectiveChoice(
        timestep_density="mode", weighting="cosmap", shift=2.0, logit_mean=0.1, logit_std=0.7, mode_scale=0.9
    )
    expected = flow("mode", "cosmap", 2.0, logit_mean=0.1, logit_std=0.7, mode_scale=0.9)
    assert open_family(tiny_pipeline(family)).objective(choice) == expected
