"""Computes the sizes of a step from the settings and the model's geometry."""

from dataclasses import dataclass, replace

from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter, rank_of
from foretune.choices.picture_size import refuse_illegal_length, sides_px
from foretune.core.errors import UserError
from foretune.planner.block_events import Sizes
from foretune.planner.encoders import Extent
from foretune.trace.shipped import Geometry


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """The largest step of a training: no bucket has more pixels or frames than what is asked for."""

    batch_size: int
    height_px: int
    width_px: int
    num_frames: int
    num_text_tokens: int
    rank: int

    def in_trace(self, geometry: Geometry) -> Sizes:
        positions = geometry.latent_positions(self.height_px, self.width_px, self.num_frames)
        return (self.batch_size, positions, self.num_text_tokens, self.rank)

    def extent(self, geometry: Geometry) -> Extent:
        return Extent(
            height_px=self.height_px,
            width_px=self.width_px,
            num_frames=self.num_frames,
            usual_num_frames=geometry.default_num_frames,
        )

    def with_shorter_side(self, shorter_px: int, multiple_px: int) -> "StepSize":
        """Returns the same aspect ratio with another shorter side, in multiples of what the model needs."""
        scale = shorter_px / min(self.height_px, self.width_px)
        sides = (round(side * scale / multiple_px) * multiple_px for side in (self.height_px, self.width_px))
        height_px, width_px = sides
        return replace(self, height_px=height_px, width_px=width_px)

    def as_dict(self) -> dict[str, int]:
        return {
            "batch_size": self.batch_size,
            "height_px": self.height_px,
            "width_px": self.width_px,
            "num_frames": self.num_frames,
            "num_text_tokens": self.num_text_tokens,
        }


def size_of(
    experiment: Experiment,
    geometry: Geometry,
    *,
    height_px: int | None = None,
    width_px: int | None = None,
    num_frames: int | None = None,
) -> StepSize:
    """Returns the sizes that an experiment requests; those it leaves out are the model's own.

    `height_px`, `width_px` and `num_frames` come before what the experiment says.
    """
    if (height_px is None) != (width_px is None):
        raise UserError("Height and width go together. Give both: foretune plan MODEL --height 512 --width 768")
    if height_px is None or width_px is None:
        usual_px = (geometry.default_height_px, geometry.default_width_px)
        resolution, multiple = experiment.data.resolution, geometry.size_multiple_px
        height_px, width_px = sides_px(resolution, usual_px, multiple, is_video=geometry.default_num_frames > 1)
    num_frames = experiment.data.num_frames if num_frames is None else num_frames
    if num_frames is not None and (num_frames < 1 or (num_frames > 1 and geometry.default_num_frames == 1)):
        takes = "frames from 1 on" if geometry.default_num_frames > 1 else "images, not videos"
        raise UserError(f"This model takes {takes}; {num_frames} frames were requested.")
    _check_sides(height_px, width_px, geometry)
    if experiment.data.num_frames is not None and geometry.default_num_frames > 1:
        # An option of the plan may ask for any length.
        refuse_illegal_length(experiment.data.num_frames, geometry.temporal_factor, "data.num_frames")
    tokens = geometry.default_text_tokens
    if experiment.data.max_text_tokens is not None and tokens and not geometry.text_is_fixed:
        tokens = experiment.data.max_text_tokens
    return StepSize(
        batch_size=experiment.train.batch_size,
        height_px=height_px,
        width_px=width_px,
        num_frames=num_frames or geometry.default_num_frames,
        num_text_tokens=tokens,
        rank=rank_of(experiment.method),
    )


def _check_sides(height_px: int, width_px: int, geometry: Geometry) -> None:
    multiple = geometry.size_multiple_px
    for side, side_px in (("width", width_px), ("height", height_px)):
        if side_px < 1 or side_px % multiple:
            lower = max(multiple, side_px // multiple * multiple)
            raise UserError(
                f"This model takes sides that are multiples of {multiple} px; the {side} is {side_px} px. "
                f"Nearest: {lower} or {lower + multiple}"
            )
    if geometry.max_side_px is not None and max(height_px, width_px) > geometry.max_side_px:
        raise UserError(
            f"This model has positions for sides up to {geometry.max_side_px} px, not {max(height_px, width_px)} px. "
            f"Set data.resolution={geometry.max_side_px}"
        )


def with_default_targets(experiment: Experiment, geometry: Geometry) -> Experiment:
    """Drops an adapter's targets if they are the model's default, so that it equals an experiment without them."""
    method = experiment.method
    if (
        not isinstance(method, Adapter)
        or method.targets is None
        or set(method.targets) != set(geometry.adapter_targets)
    ):
        return experiment
    return experiment.model_copy(update={"method": method.model_copy(update={"targets": None})})
