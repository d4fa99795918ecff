"""Complete pipelines of a few hundred thousand weights, written to disk in the diffusers layout.

They hold every part that a downloaded pipeline holds, in the same classes and files, so that whatever loads,
trains, samples or exports a real checkpoint can be run on a laptop CPU in seconds. The weights are random.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import DiffusionPipeline

from foretune.core.errors import UnknownName
from foretune.models.tiny import ddpm, flux, sd3

__all__ = ["TINY_FAMILIES", "TinyFamily", "write_tiny_pipeline"]


@dataclass(frozen=True, kw_only=True)
class TinyFamily:
    """How one family's tiny pipeline is made."""

    variants: tuple[str, ...]
    """Names of the variants; the first is the one taken when none is asked for."""
    build: Callable[[str], DiffusionPipeline]
    """From a variant to a pipeline; draws its weights from torch's CPU generator."""


TINY_FAMILIES = {
    "ddpm": TinyFamily(variants=ddpm.VARIANTS, build=ddpm.build),
    "sd3": TinyFamily(variants=sd3.VARIANTS, build=sd3.build),
    "flux": TinyFamily(variants=flux.VARIANTS, build=flux.build),
}


def write_tiny_pipeline(family: str, directory: Path, *, seed: int = 0, variant: str | None = None) -> Path:
    """Write the family's tiny pipeline into the directory, which is made if absent, and return the directory.

    The same seed gives the same bytes. Files of an earlier pipeline in the directory are overwritten.
    """
    if family not in TINY_FAMILIES:
        raise UnknownName("tiny pipeline family", family, TINY_FAMILIES)
    tiny = TINY_FAMILIES[family]
    chosen = tiny.variants[0] if variant is None else variant
    if chosen not in tiny.variants:
        raise UnknownName(f"variant of the tiny {family} pipeline", chosen, tiny.variants)
    directory.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would reseed the accelerators as well, which the fork does not put back.
        torch.default_generator.manual_seed(seed)
        pipeline = tiny.build(chosen)
    pipeline.save_pretrained(directory, safe_serialization=True)
    return directory
