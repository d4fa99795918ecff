"""Shared by most families: transformer blocks over patches of latents, trained with flow matching."""

from typing import Any, ClassVar

from torch import nn

from foretune.choices.training import ObjectiveChoice
from foretune.models.family import Family
from foretune.models.objectives import Objective


class LatentTransformer(Family):
    """A transformer on an autoencoder's latents; families differ in how they take time, text and positions."""

    adapter_targets = ("to_q", "to_k", "to_v", "to_out.0")
    stacks: ClassVar[tuple[tuple[str, str], ...]] = (("transformer_blocks", "num_layers"),)

    def blocks(self, denoiser: Any) -> tuple[nn.Module, ...]:
        """Returns the blocks that the model's own gradient checkpointing covers: refiners only if it includes them."""
        return tuple(block for name, _ in self.stacks for block in getattr(denoiser, name))

    def size_multiple_px(self) -> int:
        return self._vae_factor() * self._patch_size()

    def default_resolution_px(self) -> int:
        return 1024

    def objective(self, choice: ObjectiveChoice) -> Objective:
        return self._flow_matching(choice, "uniform", self._static_shift())

    def _patch_size(self) -> int:
        """Returns the number of latents along one edge of a token."""
        return int(self.architecture.denoiser["patch_size"])
