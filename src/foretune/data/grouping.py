"""Sorts a source's samples into buckets; for a source that is too large to list, one sample is enough."""

from array import array
from collections.abc import Iterator, Sequence

from foretune.choices.data import Data
from foretune.data.buckets import Bucket, assign, choose_buckets
from foretune.data.sources.base import Source


def buckets_for(source: Source, indices: Sequence[int], choice: Data, resolution_px: int) -> tuple[Bucket, ...]:
    """Returns the buckets for the given training samples."""
    return choose_buckets(_sizes_px(source, indices), resolution_px, choice.max_buckets, choice.bucket_step_px)


def members_by_bucket(source: Source, indices: Sequence[int], buckets: Sequence[Bucket]) -> tuple[Sequence[int], ...]:
    """Returns the samples of each bucket, repeated as often as an epoch uses them; a bucket may be empty."""
    if source.is_generated:
        return tuple(indices if place == bucket_of(source, 0, buckets) else range(0) for place in range(len(buckets)))
    members = tuple(array("q") for _ in buckets)
    for index in indices:
        place = bucket_of(source, index, buckets) if len(buckets) > 1 else 0
        members[place].extend([index] * source.repeats(index))
    return members


def only_largest(members: Sequence[Sequence[int]], buckets: Sequence[Bucket]) -> tuple[Sequence[int], ...]:
    """Returns the samples of the bucket with most pixels that has any; the others become empty."""
    sizes = [(bucket.width_px * bucket.height_px if own else 0) for own, bucket in zip(members, buckets, strict=True)]
    largest = sizes.index(max(sizes))
    return tuple(own if place == largest else range(0) for place, own in enumerate(members))


def bucket_of(source: Source, index: int, buckets: Sequence[Bucket]) -> int:
    """Returns the index of a sample's bucket."""
    info = source.info(index)
    return assign(info.width_px, info.height_px, buckets)


def _sizes_px(source: Source, indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    for index in indices[:1] if source.is_generated else indices:
        info = source.info(index)
        yield info.width_px, info.height_px
