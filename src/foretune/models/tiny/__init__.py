"""Complete pipelines of a few hundred thousand weights, written to disk in the diffusers layout.

They hold every part that a downloaded pipeline holds, in the same classes and files, so that whatever loads,
trains, samples or exports a real checkpoint can be run on a laptop CPU in seconds. The weights are random.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline

from foretune.choices.model import read_json
from foretune.choices.tiny import tiny_variant

__all__ = ["write_small_pipeline", "write_tiny_pipeline"]


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


def write_small_pipeline(family: str, directory: Path) -> None:
    """Writes the family's tiny pipeline with a transformer that is 512 wide: about 25 million weights."""
    write_tiny_pipeline(family, directory)
    sizes: Mapping[str, Any] = import_module(f"{__name__}.{family}").SMALL
    folder = directory / "transformer"
    model_class = getattr(import_module("diffusers"), read_json(folder / "config.json")["_class_name"])
    config = dict(model_class.load_config(folder))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        transformer = model_class.from_config({**config, **sizes})
    transformer.save_pretrained(folder, safe_serialization=True)
