"""A source's samples sorted into buckets; a source too large to list is asked about one sample only."""

from array import array
from collections.abc import Iterator, Sequence

from foretune.choices.data import Data
from foretune.data.buckets import Bucket, assign, choose_buckets
from foretune.data.sources.base import Source


def buckets_for(source: Source, indices: Sequence[int], choice: Data, resolution_px: int) -> tuple[Bucket, ...]:
    """The buckets that the given samples, the ones to train on, are cut to."""
    return choose_buckets(_sizes_px(source, indices), resolution_px, choice.max_buckets, choice.bucket_step_px)


def members_by_bucket(source: Source, indices: Sequence[int], buckets: Sequence[Bucket]) -> tuple[Sequence[int], ...]:
    """For each bucket its samples, each as often as an epoch sees it; a bucket may be empty."""
    if source.is_generated:
        return tuple(indices if place == bucket_of(source, 0, buckets) else range(0) for place in range(len(buckets)))
    members = tuple(array("q") for _ in buckets)
    for index in indices:
        place = bucket_of(source, index, buckets) if len(buckets) > 1 else 0
        members[place].extend([index] * source.repeats(index))
    return members


def bucket_of(source: Source, index: int, buckets: Sequence[Bucket]) -> int:
    """The index of the bucket that a sample belongs to."""
    info = source.info(index)
    return assign(info.width_px, info.height_px, buckets)


def _sizes_px(source: Source, indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    for index in indices[:1] if source.is_generated else indices:
        info = source.info(index)
        yield info.width_px, info.height_px
