"""Training objectives: noise level, target and loss weight.

Each is plain arithmetic on a uniform draw in [0, 1), so that the draw can be made anywhere.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from foretune.core.errors import Refused


class Objective(Protocol):
    """Turns a clean sample into the denoiser's input and target."""

    def noise_level(self, uniform: Tensor) -> Tensor:
        """Returns one level per sample from a uniform draw."""

    def noisy(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """Returns the denoiser's input."""

    def target(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """Returns the denoiser's target."""

    def weight(self, level: Tensor) -> Tensor:
        """Returns the loss weight of each sample."""

    def time(self, level: Tensor) -> Tensor:
        """Returns the level as the denoiser's time input."""


@dataclass(frozen=True)
class Epsilon:
    """Denoising diffusion: predict the noise that was added (DDPM, arXiv:2006.11239)."""

    num_levels: int = 1000
    beta_start: float = 1e-4
    beta_end: float = 0.02
    beta_schedule: Literal["linear", "scaled_linear"] = "linear"
    """Whether the betas or their square roots grow linearly."""

    def noise_level(self, uniform: Tensor) -> Tensor:
        return (uniform * self.num_levels).long().clamp(max=self.num_levels - 1)

    def noisy(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        kept = self._kept(level)
        return _expand(kept.sqrt(), clean) * clean + _expand((1 - kept).sqrt(), clean) * noise

    def target(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        return noise

    def weight(self, level: Tensor) -> Tensor:
        return torch.ones_like(level, dtype=torch.float32)

    def time(self, level: Tensor) -> Tensor:
        return level

    def _kept(self, level: Tensor) -> Tensor:
        """Returns the share of the clean sample's variance that remains at a level."""
        # Computed on the device with a few small operators: a table from the host would synchronise.
        start, end = self.beta_start, self.beta_end
        if self.beta_schedule == "linear":
            betas = torch.linspace(start, end, self.num_levels, device=level.device)
        else:
            betas = torch.linspace(start**0.5, end**0.5, self.num_levels, device=level.device) ** 2
        return torch.cumprod(1 - betas, dim=0)[level]


@dataclass(frozen=True)
class Velocity(Epsilon):
    """Denoising diffusion with v-prediction: predict the direction from clean to noise (arXiv:2202.00512)."""

    def target(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        kept = self._kept(level)
        return _expand(kept.sqrt(), clean) * noise - _expand((1 - kept).sqrt(), clean) * clean


@dataclass(frozen=True)
class FlowMatching:
    """Straight paths from data to noise: predict the velocity (SD3, arXiv:2403.03206)."""

    density: Literal["uniform", "logit_normal", "mode"]
    weighting: Literal["none", "sigma_sqrt", "cosmap"]
    shift: float
    logit_mean: float = 0.0
    logit_std: float = 1.0
    mode_scale: float = 1.29
    num_levels: int = 1000

    def noise_level(self, uniform: Tensor) -> Tensor:
        """Returns sigma: 0 is clean, 1 is pure noise."""
        # Away from 0 and 1, where the normal quantile or a weight of sigma ** -2 would be infinite.
        u = uniform.float().clamp(1e-5, 1 - 1e-5)
        if self.density == "logit_normal":
            # The normal quantile is sqrt(2) * erfinv(2u - 1). torch.special.ndtri has no kernel on MPS.
            u = torch.sigmoid(self.logit_mean + self.logit_std * math.sqrt(2) * (2 * u).sub_(1).erfinv_())
        elif self.density == "mode":
            u = 1 - u - self.mode_scale * (torch.cos(math.pi * u / 2) ** 2 - 1 + u)
        sigma = self.shift * u / (1 + (self.shift - 1) * u)
        return sigma.clamp(1 / self.num_levels, 1.0)

    def noisy(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        sigma = _expand(level, clean)
        return (1 - sigma) * clean + sigma * noise

    def target(self, clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        return noise - clean

    def weight(self, level: Tensor) -> Tensor:
        if self.weighting == "sigma_sqrt":
            return level**-2.0
        if self.weighting == "cosmap":
            return 2 / (math.pi * (1 - 2 * level + 2 * level**2))
        return torch.ones_like(level)

    def time(self, level: Tensor) -> Tensor:
        return level * self.num_levels


def denoising(
    scheduler: Mapping[str, Any] | None, *, beta_schedule: str, betas: tuple[float, float], num_levels: int = 1000
) -> Epsilon:
    """Returns the objective that a checkpoint was trained with, which its scheduler states; defaults are the family's.

    Raises for one that is not known: training with another would silently unlearn what the model knows.
    """
    stated = {"beta_schedule": beta_schedule} if scheduler is None else scheduler
    if why := _not_denoising(stated):
        name = stated.get("_class_name", "unnamed")
        raise Refused(
            f"This model's scheduler ({name}) {why}. Such models cannot be trained yet. "
            "Train a base that predicts noise or velocity at levels of a linear or scaled_linear schedule of betas."
        )
    return (Velocity if stated.get("prediction_type") == "v_prediction" else Epsilon)(
        num_levels=int(stated.get("num_train_timesteps", num_levels)),
        beta_start=float(stated.get("beta_start", betas[0])),
        beta_end=float(stated.get("beta_end", betas[1])),
        beta_schedule="linear" if stated["beta_schedule"] == "linear" else "scaled_linear",
    )


def _not_denoising(scheduler: Mapping[str, Any]) -> str | None:
    """Returns what in a scheduler's settings is neither `Epsilon` nor `Velocity`; None if it is one of them."""
    schedule, prediction = scheduler.get("beta_schedule"), scheduler.get("prediction_type", "epsilon")
    if schedule is None:
        return "has no beta_schedule"
    if schedule not in ("linear", "scaled_linear"):
        return f"has beta_schedule {schedule!r}"
    if prediction not in ("epsilon", "v_prediction"):
        return f"has prediction_type {prediction!r}"
    if scheduler.get("trained_betas") is not None:
        return "has trained_betas, a list of its own"
    if scheduler.get("timestep_type", "discrete") != "discrete":
        return f"has timestep_type {scheduler['timestep_type']!r}"
    flags = (key for key in ("rescale_betas_zero_snr", "use_flow_sigmas") if scheduler.get(key))
    return next((f"has {key}" for key in flags), None)


def _expand(per_sample: Tensor, like: Tensor) -> Tensor:
    return per_sample.view(-1, *([1] * (like.dim() - 1)))
