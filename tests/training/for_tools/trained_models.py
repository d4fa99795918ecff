"""Models for tests of files for other programs: like a tiny base, with other weights."""

from pathlib import Path

import torch

from foretune.models.locating import open_family
from foretune.training.for_tools.single_file import WholeModel


def trained(folder: Path, dtype: torch.dtype = torch.float32) -> WholeModel:
    """A model none of whose weights are those of the base any more."""
    family = open_family(folder)
    denoiser = family.load_denoiser(folder, dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return WholeModel(family, folder, denoiser, denoiser.state_dict().__getitem__)
