"""Evidence from one model: images at fixed seeds, held-out images noised and denoised, held-out losses."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from foretune.training.sampling import Pixels


@dataclass(frozen=True, kw_only=True)
class SampledEvidence:
    """Plain arrays, so that the model can be freed before anything is measured."""

    samples: tuple[tuple[Pixels, ...], ...] = ()
    """Images (H, W, 3), or clips (F, H, W, 3), in [0, 1], by prompt and seed."""
    denoised: dict[float, tuple[Pixels, ...]] = field(default_factory=dict)
    """By noise level: each held-out image, noised to that level and denoised with its caption."""
    losses: tuple[tuple[float, ...], ...] = ()
    """Losses of each held-out image, at one fixed noise in each band of levels."""
    images_per_s: float | None = None

    @property
    def all_samples(self) -> list[Pixels]:
        """All samples, prompt by prompt."""
        return [image for images in self.samples for image in images]


def as_batch(images: Sequence[Pixels]) -> Tensor:
    """Stacks images (H, W, 3), or the frames of a clip, into one tensor (N, 3, H, W)."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float()
