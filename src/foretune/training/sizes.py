"""The size of images and clips that a run trains on and samples: checked against what the model takes."""

from foretune.choices.experiment import Experiment
from foretune.choices.picture_size import (
    checked_resolution,
    refuse_illegal_length,
    resolution_text,
    sides_px,
    small_num_frames,
    small_sides_px,
)
from foretune.core.errors import Refused
from foretune.data.buckets import Bucket
from foretune.models.family import Family


def training_size(experiment: Experiment, family: Family) -> Bucket:
    """The size that an experiment asks for, or the model's own; refused where the model could not take it."""
    data, multiple = experiment.data, family.size_multiple_px()
    sides = _checked_sides(family, data.resolution, "data.resolution: {}", "data.resolution={}")
    if data.max_buckets > 1 and data.bucket_step_px % multiple:
        raise Refused(
            f"data.bucket_step_px: {data.bucket_step_px} px is not a multiple of {multiple} px, which this "
            f"{family.name} model needs. Nearest: data.bucket_step_px={multiple}"
        )
    return Bucket(*sides, _checked_num_frames(family, data.num_frames, "data.num_frames"))


def text_tokens(experiment: Experiment, family: Family) -> int:
    """The asked length of captions, or the model's own; some models take only their own."""
    asked, own = experiment.data.max_text_tokens, family.own_text_tokens()
    most = family.max_text_tokens()
    if asked is not None and most is not None and asked > most:
        raise Refused(
            f"data.max_text_tokens: this {family.name} model takes captions of at most {most} tokens. "
            f"Nearest: data.max_text_tokens={most}"
        )
    if family.text_is_fixed and not family.facts.text_is_fixed and asked not in (None, own):
        raise Refused(
            f"data.max_text_tokens: this {family.name} model takes captions of {own} tokens only. "
            f"Nearest: data.max_text_tokens={own}"
        )
    return own if family.text_is_fixed else asked or own


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
    if num_frames is not None and not family.is_video:
        raise Refused(f"{family.name} models make images, so that a number of frames has no meaning. Leave it out.")
    sides = _checked_sides(family, resolution, "The size {}", "{}")
    return Bucket(*sides, _checked_num_frames(family, num_frames, "frames"))


def small_size(family: Family, trained: Bucket) -> Bucket:
    """Returns a size at which a model can be tried with little memory: the trained one if it is not larger.

    Clips have the fewest frames that are more than one latent frame.
    """
    width_px, height_px = small_sides_px(trained.width_px, trained.height_px, family.size_multiple_px())
    frames = None if trained.num_frames is None else small_num_frames(trained.num_frames, family.frames_per_latent())
    return Bucket(width_px, height_px, frames)


def _checked_sides(family: Family, resolution: int | str | None, names: str, types: str) -> tuple[int, int]:
    """Width and height. `names` is the size in a message, and `types` is what to type instead."""
    multiple, is_video = family.size_multiple_px(), family.is_video
    height_px, width_px = sides_px(resolution, family.default_size_px(), multiple, is_video=is_video)
    asked = names.format(resolution_text(height_px, width_px, is_video=is_video))
    if height_px % multiple or width_px % multiple:
        fitting = (max(1, round(side / multiple)) * multiple for side in (height_px, width_px))
        nearest = types.format(resolution_text(*fitting, is_video=is_video))
        raise Refused(
            f"{asked} px is not a multiple of {multiple} px, which this {family.name} model needs. Nearest: {nearest}"
        )
    largest_px = family.max_resolution_px()
    if largest_px is not None and max(height_px, width_px) > largest_px:
        fitting = (min(side, largest_px) for side in (height_px, width_px))
        nearest = types.format(resolution_text(*fitting, is_video=is_video))
        raise Refused(
            f"{asked} px is more than the {largest_px} px that this {family.name} model has positions for. "
            f"Nearest: {nearest}"
        )
    return width_px, height_px


def _checked_num_frames(family: Family, asked: int | None, key: str) -> int | None:
    """None for a model that makes images; that an experiment asks for more than one is refused before."""
    if not family.is_video:
        return None
    num_frames = asked or family.default_num_frames()
    refuse_illegal_length(num_frames, family.frames_per_latent(), key)
    return num_frames
