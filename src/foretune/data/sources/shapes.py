"""Generated images with captions like "a small red circle on blue", and clips of them. A pure function of the index."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from foretune.choices.data import ShapesCaptions, ShapesPlacement, ShapesStyle
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
# hollow: the hole's share of the shape's width. framed: width of the frame as a share of the image's side.
HOLE = 0.55
FRAME = 1 / 16
UNSEEN_SHARE = 0.1

# Number of cached descriptions: a small set is described once, a large one takes no memory.
_MOST_KNOWN = 10_000
# Change this if an index is drawn differently, because fingerprints depend on it.
_DRAWING = "shapes-1"
# Width of the square that contains the centres of centred shapes.
_ROOM_IN_THE_MIDDLE = 0.125
Plane = npt.NDArray[np.float32]
Kind = tuple[str, str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """The content of one image; lengths are shares of the image's side."""

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
    """`num_samples` square images of `size_px`, drawn on demand.

    The style changes how a shape is drawn, not its caption, so that a style can be learnt without words.
    """

    is_generated = True

    def __init__(
        self,
        num_samples: int,
        size_px: int = 64,
        *,
        style: ShapesStyle = "plain",
        captions: ShapesCaptions = "all",
        placement: ShapesPlacement = "anywhere",
        visible: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """`visible` is the share of the width and of the height that is left when the square is cropped."""
        self.num_samples = num_samples
        self.num_frames = 1
        self.size_px = size_px
        self.style = style
        self.captions = captions
        self.placement = placement
        self.visible = visible
        self._known: dict[int, SampleInfo] = {}
        self._drawing = _DRAWING if (style, captions) == ("plain", "all") else f"{_DRAWING} {style} {captions}"
        if placement != "anywhere":
            self._drawing += f" {placement}"
        if visible != (1.0, 1.0):
            self._drawing += f" visible {visible[0]} {visible[1]}"

    def __len__(self) -> int:
        return self.num_samples

    def scene(self, index: int) -> Scene:
        """Returns what image `index` shows, at any size."""
        if not 0 <= index < self.num_samples:
            raise IndexError(index)
        shape, size, colour, background = self._kind(derive_seed(0, "shape", index))
        room = 1 - 2 * SIZES[size] if self.placement == "anywhere" else _ROOM_IN_THE_MIDDLE
        begin = (1 - room) / 2 if self.placement == "middle" else SIZES[size]
        return Scene(
            shape=shape,
            size=size,
            colour=colour,
            background=background,
            centre_x=begin + room * uniform(0, "shape", index, 0),
            centre_y=begin + room * uniform(0, "shape", index, 1),
        )

    def _kind(self, number: int) -> Kind:
        """Derives shape, size, colour and background from a large random number."""
        if self.captions != "all":
            kinds = kinds_shown(self.captions)
            return kinds[number % len(kinds)]
        rest, shape = divmod(number, len(SHAPES))
        rest, size = divmod(rest, len(SIZES))
        rest, colour = divmod(rest, len(COLOURS))
        # One colour fewer, counted from the shape's own, so that the two always differ.
        background = (colour + 1 + rest % (len(COLOURS) - 1)) % len(COLOURS)
        names = tuple(COLOURS)
        return (SHAPES[shape], tuple(SIZES)[size], names[colour], names[background])

    def info(self, index: int) -> SampleInfo:
        """Returns size, caption and fingerprint of a sample, without drawing it."""
        info = self._known.get(index)
        if info is None:
            info = SampleInfo(
                fingerprint=_hash(f"{self._drawing} {self.size_px} {index}"),
                width_px=self.size_px,
                height_px=self.size_px,
                caption=self.scene(index).caption,
                num_frames=self.num_frames,
            )
            if len(self._known) < _MOST_KNOWN:
                self._known[index] = info
        return info

    def pixels(self, index: int) -> Pixels:
        """Draws the image, with edges smoothed over one pixel."""
        scene = self.scene(index)
        return self._drawn(scene, (scene.centre_x, scene.centre_y))

    def _drawn(self, scene: Scene, centre: tuple[float, float]) -> Pixels:
        # Of a whole square exactly as it is, without rounding.
        shown = (c if share == 1 else 0.5 + (c - 0.5) * share for c, share in zip(centre, self.visible, strict=True))
        x, y = shown
        centre_px = (x * self.size_px, y * self.size_px)
        covered = coverage(scene.shape, scene.size, self.style, centre_px, self.size_px)[..., None]
        colour = np.array(COLOURS[scene.colour], dtype=np.float32)
        background = np.array(COLOURS[scene.background], dtype=np.float32)
        mixed: Pixels = np.rint(background + covered * (colour - background)).astype(np.uint8)
        return mixed

    def name(self, index: int) -> str:
        """Returns the number of the image."""
        return f"image {index}"

    def repeats(self, index: int) -> int:
        """Returns 1: each sample is used once per epoch."""
        assert 0 <= index < self.num_samples
        return 1

    def notes(self) -> tuple[str, ...]:
        """Returns nothing: every image is drawn and captioned."""
        return ()

    def fingerprint(self) -> str:
        """Returns a hash of the settings, which determine all images."""
        return _hash(f"{self._drawing} {self.size_px} all {self.num_samples}")


def coverage(shape: str, size: str, style: str, centre_px: tuple[float, float], size_px: int) -> Plane:
    """Returns how much of each pixel has the shape's colour, from 0 to 1; edges are smoothed over one pixel."""
    covered: Plane = coverages(shape, size, style, [centre_px], size_px)[0]
    return covered


def coverages(
    shape: str, size: str, style: str, centres_px: Sequence[tuple[float, float]], size_px: int
) -> npt.NDArray[np.float32]:
    """Returns the same drawing at several positions: position x row x column."""
    half_px = np.float32(SIZES[size] * size_px)
    middles_px = np.arange(size_px, dtype=np.float32) + np.float32(0.5)
    centres = np.array(centres_px, dtype=np.float64).astype(np.float32)
    x_px = middles_px[None, None, :] - centres[:, 0, None, None]
    y_px = middles_px[None, :, None] - centres[:, 1, None, None]
    covered = _covered(_outside_px(shape, x_px, y_px, half_px))
    if style == "hollow":
        # The hole shrinks towards the centroid, which for a triangle is a sixth of its height below the middle.
        below_px = half_px * np.float32((1 - HOLE) / 3) if shape == "triangle" else np.float32(0)
        covered = covered * (1 - _covered(_outside_px(shape, x_px, y_px - below_px, half_px * np.float32(HOLE))))
    elif style == "halved":
        covered = covered * _covered(x_px)
    elif style == "framed":
        covered = np.maximum(covered, frame_coverage(size_px))
    return covered


def frame_coverage(size_px: int) -> Plane:
    """Returns the frame of the style `framed`."""
    middles_px = np.arange(size_px, dtype=np.float32) + np.float32(0.5)
    to_edge_px = np.minimum(middles_px, size_px - middles_px)
    return _covered(np.minimum(to_edge_px[None, :], to_edge_px[:, None]) - np.float32(FRAME * size_px))


@cache
def kinds_shown(captions: ShapesCaptions) -> tuple[Kind, ...]:
    """Returns shape, size, colour and background of every caption in use.

    The tenth of all captions with the smallest hashes is `unseen`: a model trained on `seen` knows all of their words,
    but has not seen the combinations.
    """
    kinds = [kind for kind in product(SHAPES, SIZES, COLOURS, COLOURS) if kind[2] != kind[3]]
    by_hash = sorted(kinds, key=lambda kind: _hash(" ".join(("unseen", *kind))))
    unseen = frozenset(by_hash[: round(UNSEEN_SHARE * len(kinds))])
    return tuple(kind for kind in kinds if captions == "all" or (kind in unseen) == (captions == "unseen"))


def captions_shown(captions: ShapesCaptions) -> tuple[str, ...]:
    """Returns every caption in use, once."""
    return tuple(
        Scene(shape=shape, size=size, colour=colour, background=background, centre_x=0.5, centre_y=0.5).caption
        for shape, size, colour, background in kinds_shown(captions)
    )


def _covered(outside_px: Plane) -> Plane:
    covered: Plane = np.clip(0.5 - outside_px, 0, 1)
    return covered


def _outside_px(shape: str, x_px: Plane, y_px: Plane, half_px: np.float32) -> Plane:
    """Returns the distance of each pixel's centre from the shape's edge; negative inside.

    It only uses operations that are rounded equally on every machine.
    """
    outside: Plane
    if shape == "circle":
        outside = np.sqrt(x_px * x_px + y_px * y_px) - half_px
    elif shape == "square":
        outside = np.maximum(np.abs(x_px), np.abs(y_px)) - half_px
    elif shape == "triangle":
        # Base at the bottom, apex at the top; each side is x = ±(y + half) / 2, so its unit normal is (2, -1) /
        # sqrt(5).
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
