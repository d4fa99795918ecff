"""Denoises a partly noised image, with the same deterministic steps for every family.

A pipeline's own scheduler starts from pure noise; here the start is a real image with some noise, so that there is a
ground truth to compare with.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foretune.models.family import Conditioning, Family
from foretune.models.objectives import Epsilon, FlowMatching, Objective, Velocity
from foretune.step.precision import PrecisionPolicy


@dataclass(frozen=True)
class Denoising:
    """A denoiser with everything that determines its predictions."""

    family: Family
    denoiser: nn.Module
    objective: Objective
    policy: PrecisionPolicy
    guidance_scale: float

    @torch.no_grad()
    def __call__(
        self, clean: Tensor, noise: Tensor, share: float, conditioning: Conditioning, num_steps: int
    ) -> Tensor:
        """Adds noise to `clean` up to `share` of all levels and denoises it in `num_steps` deterministic steps.

        The steps are those of DDIM, which for flow matching are Euler steps.
        """
        assert num_steps > 0
        shares = torch.linspace(share, 0.0, num_steps + 1).tolist()
        objective = self.objective
        level = _levels(objective, shares[0], clean)
        current = objective.noisy(clean, noise, level)
        for following in shares[1:-1]:
            image, remaining = self._parts(current, level, conditioning)
            level = _levels(objective, following, clean)
            current = objective.noisy(image, remaining, level)
        image, _ = self._parts(current, level, conditioning)
        return image

    def _parts(self, current: Tensor, level: Tensor, conditioning: Conditioning) -> tuple[Tensor, Tensor]:
        """Returns the clean image and the noise implied by the denoiser's prediction."""
        objective = self.objective
        with self.policy.autocast(current.device.type):
            answer = self.family.predict(
                self.denoiser,
                current.to(self.policy.compute_dtype),
                objective.time(level),
                conditioning,
                guidance_scale=self.guidance_scale,
            ).float()
        # The image's and the noise's factors at a level, computed with the objective itself.
        one, nothing = torch.ones_like(current), torch.zeros_like(current)
        kept, added = objective.noisy(one, nothing, level), objective.noisy(nothing, one, level)
        if isinstance(objective, FlowMatching):
            return current - added * answer, current + kept * answer
        if isinstance(objective, Velocity):
            return kept * current - added * answer, added * current + kept * answer
        return (current - added * answer) / kept, answer


def _levels(objective: Objective, share: float, like: Tensor) -> Tensor:
    """Returns the noise level at this share of all, for each sample, independent of training's density."""
    batch = like.shape[0]
    if isinstance(objective, FlowMatching):
        return torch.full((batch,), share, device=like.device)
    assert isinstance(objective, Epsilon), "one more objective needs its levels here"
    number = min(objective.num_levels - 1, max(0, round(share * objective.num_levels)))
    return torch.full((batch,), number, dtype=torch.long, device=like.device)
