"""Full fine-tuning: trains every weight of the denoiser that has a gradient."""

import torch

from foretune.step.methods.base import AppliedMethod


class AppliedFull(AppliedMethod):
    """Adds nothing."""

    trains_base = True

    def attach(self, seed: int, dtype: torch.dtype) -> None:
        self.denoiser.requires_grad_(requires_grad=True)
        self._freeze_without_gradient()
