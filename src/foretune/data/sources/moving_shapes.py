"""Generated clips with captions like "a small red circle on blue moving right". A pure function of the index."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foretune.choices.data import ShapesData
from foretune.core.draws import derive_seed
from foretune.data.buckets import Bucket
from foretune.data.images import Pixels
from foretune.data.sources.shapes import SIZES, Scene, Shapes

# Where the centre begins and ends, as shares of the room that a shape has along each axis; None: it stays.
DIRECTIONS: dict[str, tuple[tuple[float, float] | None, tuple[float, float] | None]] = {
    "left": ((1, 0), None),
    "right": ((0, 1), None),
    "up": (None, (1, 0)),
    "down": (None, (0, 1)),
}

# Places 0 and 1 of a sample's draws are its centre.
_OF_DIRECTION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class MovingScene(Scene):
    """The content of one clip; `centre_x` and `centre_y` are where the shape would be if it did not move."""

    direction: str

    @property
    def caption(self) -> str:
        """The sentence that describes the clip."""
        return f"a {self.size} {self.colour} {self.shape} on {self.background} moving {self.direction}"

    def centre(self, moment: float) -> tuple[float, float]:
        """Returns the centre of the shape at a moment from 0 to 1."""
        along = zip((self.centre_x, self.centre_y), DIRECTIONS[self.direction], strict=True)
        x, y = (still if ends is None else self._between(*ends, moment) for still, ends in along)
        return x, y

    def _between(self, begin: float, end: float, moment: float) -> float:
        margin = SIZES[self.size]
        return margin + (1 - 2 * margin) * (begin + (end - begin) * moment)


class MovingShapes(Shapes):
    """Clips in which a shape crosses the image at a steady speed, from its first frame to its last."""

    def __init__(self, num_samples: int, size_px: int, num_frames: int, **drawing: Any) -> None:
        assert num_frames > 1
        super().__init__(num_samples, size_px, **drawing)
        self.num_frames = num_frames
        self._drawing += f" moving {num_frames}"

    def scene(self, index: int) -> MovingScene:
        """Returns what clip `index` shows, at any size."""
        still = super().scene(index)
        direction = tuple(DIRECTIONS)[derive_seed(0, "shape", index, _OF_DIRECTION) % len(DIRECTIONS)]
        values = {name: getattr(still, name) for name in Scene.__slots__}
        return MovingScene(**values, direction=direction)

    def frames(self, index: int, num_frames: int) -> Sequence[Pixels]:
        """Draws the first frames."""
        assert num_frames <= self.num_frames
        scene = self.scene(index)
        return [self._drawn(scene, scene.centre(frame / (self.num_frames - 1))) for frame in range(num_frames)]

    def pixels(self, index: int) -> Pixels:
        """Draws the first frame."""
        return self.frames(index, 1)[0]

    def name(self, index: int) -> str:
        """Returns the number of the clip."""
        return f"clip {index}"


def open_shapes(choice: ShapesData, largest: Bucket) -> Shapes:
    """Opens the generated source of an experiment; with several frames, the shapes move."""
    size_px = max(largest.width_px, largest.height_px)
    drawing: dict[str, Any] = {"style": choice.style, "captions": choice.captions, "placement": choice.placement}
    # The square is cropped to the largest bucket, so that shapes stay in the part that is left.
    drawing["visible"] = (largest.width_px / size_px, largest.height_px / size_px)
    if largest.num_frames is None or largest.num_frames == 1:
        return Shapes(choice.num_samples, size_px, **drawing)
    return MovingShapes(choice.num_samples, size_px, largest.num_frames, **drawing)
