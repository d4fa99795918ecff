"""Generated images that say what they show: "a small red circle on blue". A pure function of the index."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foretune.choices.data import ShapesData
from foretune.core.draws import derive_seed, uniform
from foretune.data.images import Pixels
from foretune.data.sources.base import SampleInfo

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 160, 70),
    "blue": (40, 80, 210),
    "yellow": (240, 210, 50),
    "orange": (240, 130, 30),
    "purple": (140, 60, 180),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
}
SHAPES = ("circle", "square", "triangle", "cross")
# Half the width of a shape, as a share of the image's side.
SIZES = {"small": 0.14, "medium": 0.22, "large": 0.32}

# A change of what is drawn for an index must change this, because fingerprints are made of it.
# Samples whose description is kept: a small set is described once, a large one costs no memory.
_MOST_KNOWN = 10_000
_DRAWING = "shapes-1"
_Plane = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What one image shows; lengths are shares of the image's side."""

    shape: str
    size: str
    colour: str
    background: str
    centre_x: float
    centre_y: float

    @property
    def caption(self) -> str:
        """The sentence that describes the image."""
        return f"a {self.size} {self.colour} {self.shape} on {self.background}"


class Shapes:
    """`num_samples` square images of `size_px`, drawn when they are asked for."""

    is_generated = True

    def __init__(self, num_samples: int, size_px: int = 64) -> None:
        self.num_samples = num_samples
        self.size_px = size_px
        self._known: dict[int, SampleInfo] = {}

    def __len__(self) -> int:
        return self.num_samples

    def scene(self, index: int) -> Scene:
        """What image `index` shows, at any size."""
        if not 0 <= index < self.num_samples:
            raise IndexError(index)
        rest = derive_seed(0, "shape", index)
        rest, shape = divmod(rest, len(SHAPES))
        rest, size = divmod(rest, len(SIZES))
        rest, colour = divmod(rest, len(COLOURS))
        # One fewer, counted from the shape's own colour, so that the two are never equal.
        background = (colour + 1 + rest % (len(COLOURS) - 1)) % len(COLOURS)
        names = tuple(COLOURS)
        size_name = tuple(SIZES)[size]
        room = 1 - 2 * SIZES[size_name]
        return Scene(
            shape=SHAPES[shape],
            size=size_name,
            colour=names[colour],
            background=names[background],
            centre_x=SIZES[size_name] + room * uniform(0, "shape", index, 0),
            centre_y=SIZES[size_name] + room * uniform(0, "shape", index, 1),
        )

    def info(self, index: int) -> SampleInfo:
        """Size, caption and fingerprint of a sample, without drawing it."""
        info = self._known.get(index)
        if info is None:
            info = SampleInfo(
                fingerprint=_hash(f"{_DRAWING} {self.size_px} {index}"),
                width_px=self.size_px,
                height_px=self.size_px,
                caption=self.scene(index).caption,
            )
            if len(self._known) < _MOST_KNOWN:
                self._known[index] = info
        return info

    def pixels(self, index: int) -> Pixels:
        """The image, with edges smoothed over one pixel."""
        scene = self.scene(index)
        half_px = np.float32(SIZES[scene.size] * self.size_px)
        middles_px = np.arange(self.size_px, dtype=np.float32) + np.float32(0.5)
        x_px = (middles_px - np.float32(scene.centre_x * self.size_px))[None, :]
        y_px = (middles_px - np.float32(scene.centre_y * self.size_px))[:, None]
        covered = np.clip(0.5 - _outside_px(scene.shape, x_px, y_px, half_px), 0, 1)[..., None]
        colour = np.array(COLOURS[scene.colour], dtype=np.float32)
        background = np.array(COLOURS[scene.background], dtype=np.float32)
        mixed: Pixels = np.rint(background + covered * (colour - background)).astype(np.uint8)
        return mixed

    def repeats(self, index: int) -> int:
        """Each sample is seen once an epoch."""
        assert 0 <= index < self.num_samples
        return 1

    def fingerprint(self) -> str:
        """What is drawn follows from the size and the number of images."""
        return _hash(f"{_DRAWING} {self.size_px} all {self.num_samples}")


def _outside_px(shape: str, x_px: _Plane, y_px: _Plane, half_px: np.float32) -> _Plane:
    """How far each pixel's middle lies outside the shape's edge; negative inside.

    Only operations that are rounded the same on every machine.
    """
    outside: _Plane
    if shape == "circle":
        outside = np.sqrt(x_px * x_px + y_px * y_px) - half_px
    elif shape == "square":
        outside = np.maximum(np.abs(x_px), np.abs(y_px)) - half_px
    elif shape == "triangle":
        # Base below, apex above; each side is x = ±(y + half) / 2, so its unit normal is (2, -1) / sqrt(5).
        side = (2 * np.abs(x_px) - y_px - half_px) / np.sqrt(np.float32(5))
        outside = np.maximum(side, y_px - half_px)
    else:
        arm_px = half_px / np.float32(3)
        upright = np.maximum(np.abs(x_px) - arm_px, np.abs(y_px) - half_px)
        lying = np.maximum(np.abs(x_px) - half_px, np.abs(y_px) - arm_px)
        outside = np.minimum(upright, lying)
    return outside


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def open_shapes(choice: ShapesData, resolution_px: int) -> Shapes:
    """The generated source that an experiment asks for."""
    return Shapes(choice.num_samples, size_px=resolution_px)
