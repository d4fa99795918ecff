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
"""Ends the name of a trace with marks in it (`trace.marking`)."""


class Geometry(Part):
    """How a model's latents follow from the size of an image or a video, and the sizes it was made for."""

    spatial_factor: int
    """Pixels along a side for one latent position; 1 where the model works on pixels."""
    temporal_factor: int
    """Frames for one latent position, after the first frame."""
    frames_multiple: int
    """Latent frames are filled up to a multiple of this."""
    size_multiple_px: int
    default_height_px: int
    default_width_px: int
    default_num_frames: int
    default_text_tokens: int
    text_is_fixed: bool
    """Whether the model takes captions of this length only."""
    adapter_targets: tuple[str, ...]
    """Ends of the names of the modules that adapters go to by default."""
    max_side_px: int | None
    """The largest side it has positions for; None where there is no limit."""
    stacks: tuple[int, ...]
    """Numbers of the repeated blocks in each stack, in the order they run."""

    def num_latent_frames(self, num_frames: int) -> int:
        plain = (num_frames - 1) // self.temporal_factor + 1
        return -(-plain // self.frames_multiple) * self.frames_multiple

    def latent_positions(self, height_px: int, width_px: int, num_frames: int) -> int:
        """Height times width times frames of one sample's latents."""
        per_frame = (height_px // self.spatial_factor) * (width_px // self.spatial_factor)
        return per_frame * self.num_latent_frames(num_frames)


def folder() -> Traversable:
    return files("foretune.trace") / "data"


def read_trace(slug: str) -> StepTrace | None:
    """The shipped trace of that name, if there is one."""
    path = folder() / f"{slug}{SUFFIX}"
    return unpack(path.read_bytes()) if path.is_file() else None


def is_shipped(slug: str) -> bool:
    return (folder() / f"{slug}{SUFFIX}").is_file()


def shipped_slugs() -> tuple[str, ...]:
    """Names of all shipped traces."""
    return tuple(sorted(p.name.removesuffix(SUFFIX) for p in folder().iterdir() if p.name.endswith(SUFFIX)))


@cache
def recipes() -> Recipes:
    """What optimizers and quantised layers do to weights of any shape."""
    return Recipes.model_validate_json((folder() / RECIPES_FILE).read_bytes())


@cache
def geometries() -> Mapping[str, Geometry]:
    """The geometry of every denoiser of the catalogue, by name."""
    raw = json.loads((folder() / GEOMETRY_FILE).read_text(encoding="utf-8"))
    return {name: Geometry.model_validate(row) for name, row in raw.items()}
