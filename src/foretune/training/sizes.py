"""The size of images and clips that a run trains on and samples: checked against what the model takes."""

from foretune.choices.experiment import Experiment
from foretune.choices.picture_size import checked_resolution, resolution_text, sides_px
from foretune.core.errors import Refused
from foretune.data.buckets import Bucket
from foretune.models.family import Family


def training_size(experiment: Experiment, family: Family) -> Bucket:
    """The size that an experiment asks for, or the model's own; refused where the model could not take it."""
    data, multiple = experiment.data, family.size_multiple_px()
    size = _checked(family, data.resolution, data.num_frames, "data.resolution: {}", "data.resolution={}")
    if data.max_buckets > 1 and data.bucket_step_px % multiple:
        raise Refused(
            f"data.bucket_step_px: {data.bucket_step_px} px is not a multiple of {multiple} px, which this "
            f"{family.name} model needs. Nearest: data.bucket_step_px={multiple}"
        )
    return size


def sampling_size(
    family: Family, resolution: int | str | None, num_frames: int | None = None, *, trained: Bucket | None = None
) -> Bucket:
    """The size that options ask for; what they leave out is as trained, or else the model's own."""
    try:
        resolution = checked_resolution(resolution)
    except ValueError as error:
        raise Refused(f"The size {error}.") from error
    if trained is not None:
        resolution = resolution or f"{trained.width_px}x{trained.height_px}"
        num_frames = num_frames or trained.num_frames
    return _checked(family, resolution, num_frames, "The size {}", "{}")


def _checked(family: Family, resolution: int | str | None, num_frames: int | None, asks: str, setting: str) -> Bucket:
    multiple = family.size_multiple_px()
    height_px, width_px = sides_px(resolution, family.default_size_px(), multiple, is_video=family.is_video)
    is_video = family.is_video
    asked = asks.format(resolution_text(height_px, width_px, is_video=is_video))
    if height_px % multiple or width_px % multiple:
        fitting = (max(1, round(side / multiple)) * multiple for side in (height_px, width_px))
        nearest = setting.format(resolution_text(*fitting, is_video=is_video))
        raise Refused(
            f"{asked} px is not a multiple of {multiple} px, which this {family.name} model needs. Nearest: {nearest}"
        )
    largest_px = family.max_resolution_px()
    if largest_px is not None and max(height_px, width_px) > largest_px:
        fitting = (min(side, largest_px) for side in (height_px, width_px))
        nearest = setting.format(resolution_text(*fitting, is_video=is_video))
        raise Refused(
            f"{asked} px is more than the {largest_px} px that this {family.name} model has positions for. "
            f"Nearest: {nearest}"
        )
    return Bucket(width_px, height_px, _checked_num_frames(family, num_frames))


def _checked_num_frames(family: Family, asked: int | None) -> int | None:
    if not family.is_video:
        return None
    num_frames = asked or family.default_num_frames()
    below = family.legal_num_frames(num_frames)
    if below != num_frames:
        above = next(more for more in range(num_frames, 2 * num_frames + 64) if family.legal_num_frames(more) == more)
        nearest = below if num_frames - below <= above - num_frames else above
        raise Refused(
            f"data.num_frames: this {family.name} model does not take {num_frames} frames, but {below} or {above}. "
            f"Nearest: data.num_frames={nearest}"
        )
    return num_frames
