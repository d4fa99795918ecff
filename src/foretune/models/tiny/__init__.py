"""Complete pipelines of a few hundred thousand weights, written to disk in the diffusers layout.

They hold every part that a downloaded pipeline holds, in the same classes and files, so that whatever loads,
trains, samples or exports a real checkpoint can be run on a laptop CPU in seconds. The weights are random.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch
from diffusers import DiffusionPipeline

from foretune.choices.tiny import tiny_variant

__all__ = ["write_tiny_pipeline"]


def write_tiny_pipeline(family: str, directory: Path, *, seed: int = 0, variant: str | None = None) -> Path:
    """Writes the family's tiny pipeline to the directory, creates it if needed, and returns it.

    The same seed gives the same bytes. Files of an earlier pipeline in the directory are overwritten.
    """
    chosen = tiny_variant(family, variant)
    # From a variant to a pipeline, with weights from torch's CPU generator.
    build: Callable[[str], DiffusionPipeline] = import_module(f"{__name__}.{family}").build
    directory.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would also reseed the accelerators, which the fork does not restore.
        torch.default_generator.manual_seed(seed)
        pipeline = build(chosen)
    pipeline.save_pretrained(directory, safe_serialization=True)
    return directory
