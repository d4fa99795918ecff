"""Models for tests of files for other programs: like a tiny base, with other weights."""

from pathlib import Path

import torch

from foretune.choices.method import Full
from foretune.models.locating import open_family
from foretune.step.methods import METHODS
from foretune.training.exporting import TrainedModel


def trained(folder: Path, dtype: torch.dtype = torch.float32) -> TrainedModel:
    """A model none of whose weights are those of the base any more."""
    family = open_family(folder)
    denoiser = family.load_denoiser(folder, dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    method = METHODS["full"](Full(), family, denoiser)
    return TrainedModel(family, folder, method, 1, None)  # type: ignore[arg-type]
