"""Sorts a source's samples into buckets; for a source that is too large to list, one sample is enough."""

from array import array
from collections.abc import Iterator, Sequence

from foretune.choices.data import Data
from foretune.choices.picture_size import legal_num_frames
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket, SampleSize, assign, choose_buckets
from foretune.data.sources.base import Source

_MOST_NAMED = 3


def buckets_for(
    source: Source,
    indices: Sequence[int],
    choice: Data,
    largest: Bucket,
    frames_per_latent: int = 1,
) -> tuple[Bucket, ...]:
    """Returns the buckets for the given training samples."""
    sizes = _sizes(source, indices)
    return choose_buckets(sizes, largest, choice.max_buckets, choice.bucket_step_px, frames_per_latent)


def members_by_bucket(source: Source, indices: Sequence[int], buckets: Sequence[Bucket]) -> tuple[Sequence[int], ...]:
    """Returns the samples of each bucket, repeated as often as an epoch uses them; a bucket may be empty."""
    if source.is_generated:
        return tuple(indices if place == bucket_of(source, 0, buckets) else range(0) for place in range(len(buckets)))
    members = tuple(array("q") for _ in buckets)
    for index in indices:
        place = bucket_of(source, index, buckets) if len(buckets) > 1 else 0
        members[place].extend([index] * source.repeats(index))
    return members


def refuse_short_clips(
    source: Source, indices: Sequence[int], buckets: Sequence[Bucket], frames_per_latent: int
) -> None:
    """Raises for clips with fewer frames than the shortest bucket, and names them."""
    least = min(bucket.num_frames or 1 for bucket in buckets)
    if least == 1:
        return
    lengths = {i: source.info(i).num_frames for i in (indices[:1] if source.is_generated else indices)}
    short = [index for index, num_frames in lengths.items() if num_frames < least]
    if not short:
        return
    named = ", ".join(f"{source.name(index)} ({lengths[index]})" for index in short[:_MOST_NAMED])
    more = f" and {len(short) - _MOST_NAMED} more" if len(short) > _MOST_NAMED else ""
    several = ", or train on clips of several lengths (data.max_buckets=8)" if len(buckets) == 1 else ""
    fitting = legal_num_frames(min(lengths.values()), frames_per_latent)
    raise UserError(
        f"{len(short)} of {len(lengths)} samples have fewer than {least} frames: {named}{more}. Take shorter clips "
        f"(data.num_frames={fitting}){several}, or take these out of the data."
    )


def only_largest(members: Sequence[Sequence[int]], buckets: Sequence[Bucket]) -> tuple[Sequence[int], ...]:
    """Returns the samples of the bucket with most pixels that has any; the others become empty."""
    sizes = [bucket.num_pixels if own else 0 for own, bucket in zip(members, buckets, strict=True)]
    largest = sizes.index(max(sizes))
    return tuple(own if place == largest else range(0) for place, own in enumerate(members))


def bucket_of(source: Source, index: int, buckets: Sequence[Bucket]) -> int:
    """Returns the index of a sample's bucket."""
    info = source.info(index)
    return assign(SampleSize(info.width_px, info.height_px, info.num_frames), buckets)


def _sizes(source: Source, indices: Sequence[int]) -> Iterator[SampleSize]:
    for index in indices[:1] if source.is_generated else indices:
        info = source.info(index)
        yield SampleSize(info.width_px, info.height_px, info.num_frames)
