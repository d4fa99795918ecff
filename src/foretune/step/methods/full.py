"""Full fine-tuning: every weight of the denoiser."""

import torch

from foretune.step.methods.base import AppliedMethod


class AppliedFull(AppliedMethod):
    """Nothing is added, nothing is frozen."""

    trains_base = True

    def attach(self, seed: int, dtype: torch.dtype) -> None:
        self.denoiser.requires_grad_(requires_grad=True)
