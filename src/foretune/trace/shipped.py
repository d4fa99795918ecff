"""The traces and sizes that ship with the package. Reading them needs neither torch nor the models."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from foretune.core.values.base import Part
from foretune.core.values.packed_trace import unpack
from foretune.core.values.recipes import Recipes
from foretune.core.values.step_trace import StepTrace

SUFFIX = ".xz"
GEOMETRY_FILE = "geometry.json"
RECIPES_FILE = "recipes.json"
MARKED = ".marked"
"""Suffix of the names of traces with marks (`trace.marking`)."""


class Geometry(Part):
    """How a model's latents follow from the size of an image or a video, and its native sizes."""

    spatial_factor: int
    """Pixels per latent position along a side; 1 if the model works on pixels."""
    temporal_factor: int
    """Frames per latent position, after the first frame."""
    frames_multiple: int
    """Latent frames are padded to a multiple of this."""
    size_multiple_px: int
    default_height_px: int
    default_width_px: int
    default_num_frames: int
    default_text_tokens: int
    text_is_fixed: bool
    """Whether the model only takes captions of this length."""
    adapter_targets: tuple[str, ...]
    """Suffixes of the module names that adapters target by default."""
    max_side_px: int | None
    """The largest side that has position embeddings; None if there is no limit."""
    stacks: tuple[int, ...]
    """Number of repeated blocks in each stack, in execution order."""

    def num_latent_frames(self, num_frames: int) -> int:
        plain = (num_frames - 1) // self.temporal_factor + 1
        return -(-plain // self.frames_multiple) * self.frames_multiple

    def latent_positions(self, height_px: int, width_px: int, num_frames: int) -> int:
        """Returns height x width x frames of one sample's latents."""
        per_frame = (height_px // self.spatial_factor) * (width_px // self.spatial_factor)
        return per_frame * self.num_latent_frames(num_frames)


def folder() -> Traversable:
    return files("foretune.trace") / "data"


def read_trace(slug: str) -> StepTrace | None:
    """Returns the shipped trace of this name, or None."""
    path = folder() / f"{slug}{SUFFIX}"
    return unpack(path.read_bytes()) if path.is_file() else None


def is_shipped(slug: str) -> bool:
    return (folder() / f"{slug}{SUFFIX}").is_file()


def shipped_slugs() -> tuple[str, ...]:
    """Returns the names of all shipped traces."""
    return tuple(sorted(p.name.removesuffix(SUFFIX) for p in folder().iterdir() if p.name.endswith(SUFFIX)))


@cache
def recipes() -> Recipes:
    """Returns what optimizers and quantised layers do with weights of any shape."""
    return Recipes.model_validate_json((folder() / RECIPES_FILE).read_bytes())


@cache
def geometries() -> Mapping[str, Geometry]:
    """Returns the geometry of every denoiser in the catalogue, by name."""
    raw = json.loads((folder() / GEOMETRY_FILE).read_text(encoding="utf-8"))
    return {name: Geometry.model_validate(row) for name, row in raw.items()}
