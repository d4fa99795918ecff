"""Sorts a source's samples into buckets; for a source that is too large to list, one sample is enough."""

from array import array
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from foretune.choices.data import Data
from foretune.choices.picture_size import legal_num_frames
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket, SampleSize, assign, choose_buckets
from foretune.data.order import Order, StepOrder
from foretune.data.selected import SelectedSamples
from foretune.data.sources.base import IndexedSource, Source
from foretune.data.window_order import UNUSED, WindowOrder

_MOST_NAMED = 3


def buckets_for(
    source: Source,
    indices: Sequence[int],
    choice: Data,
    largest: Bucket,
    frames_per_latent: int = 1,
) -> tuple[Bucket, ...]:
    """Returns the buckets for the given training samples."""
    if choice.max_buckets == 1:
        return (largest,)
    sizes = _counted_sizes(source, indices) if isinstance(source, IndexedSource) else _sizes(source, indices)
    return choose_buckets(sizes, largest, choice.max_buckets, choice.bucket_step_px, frames_per_latent)


def order_for(
    source: Source,
    indices: Sequence[int],
    buckets: Sequence[Bucket],
    *,
    only_largest_bucket: bool,
    samples_per_step: int,
    seed: int,
) -> StepOrder:
    """Returns the order of training on the given samples: of all of them, or near in place where they are streamed."""
    if isinstance(source, IndexedSource):
        return WindowOrder(
            _bucket_codes(source, indices, buckets, only_largest_bucket=only_largest_bucket),
            source.shard_ends,
            num_buckets=len(buckets),
            shards_per_window=source.shards_per_window,
            samples_per_step=samples_per_step,
            seed=seed,
        )
    members = members_by_bucket(source, indices, buckets)
    return Order(only_largest(members, buckets) if only_largest_bucket else members, samples_per_step, seed)


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
    short = _short(source, indices, least)
    if not short:
        return
    num_all = 1 if source.is_generated else len(indices)
    named = ", ".join(f"{source.name(index)} ({num})" for index, num in list(short.items())[:_MOST_NAMED])
    more = f" and {len(short) - _MOST_NAMED} more" if len(short) > _MOST_NAMED else ""
    several = ", or train on clips of several lengths (data.max_buckets=8)" if len(buckets) == 1 else ""
    fitting = legal_num_frames(min(short.values()), frames_per_latent)
    raise UserError(
        f"{len(short)} of {num_all} samples have fewer than {least} frames: {named}{more}. Take shorter clips "
        f"(data.num_frames={fitting}){several}, or take these out of the data."
    )


def _short(source: Source, indices: Sequence[int], least: int) -> dict[int, int]:
    """Returns the number of frames of each sample that has fewer than `least`."""
    if isinstance(source, IndexedSource):
        frames = source.rows()["num_frames"]
        mask = _mask(source, indices)
        return {int(index): int(frames[index]) for index in np.flatnonzero(mask & (frames < least))}
    lengths = {index: source.info(index).num_frames for index in (indices[:1] if source.is_generated else indices)}
    return {index: num_frames for index, num_frames in lengths.items() if num_frames < least}


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


def _mask(source: IndexedSource, indices: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Whether each sample of the source is one of the indices."""
    if isinstance(indices, SelectedSamples):
        return indices.mask
    mask = np.zeros(len(source), np.bool_)
    mask[np.asarray(indices, dtype=np.int64)] = True
    return mask


def _size_keys(source: IndexedSource) -> npt.NDArray[np.uint64]:
    """Returns one number for each sample; equal for equal sizes."""
    rows = source.rows()
    keys: npt.NDArray[np.uint64] = rows["width_px"].astype(np.uint64) << np.uint64(32)
    keys |= rows["height_px"].astype(np.uint64) << np.uint64(16)
    keys |= rows["num_frames"]
    return keys


def _size_of(key: int) -> SampleSize:
    return SampleSize(key >> 32, key >> 16 & 0xFFFF, key & 0xFFFF)


def _counted_sizes(source: IndexedSource, indices: Sequence[int]) -> Mapping[SampleSize, int]:
    """Returns how many samples have each size."""
    keys, counts = np.unique(_size_keys(source)[_mask(source, indices)], return_counts=True)
    return {_size_of(key): count for key, count in zip(keys.tolist(), counts.tolist(), strict=True)}


def _bucket_codes(
    source: IndexedSource, indices: Sequence[int], buckets: Sequence[Bucket], *, only_largest_bucket: bool
) -> npt.NDArray[np.uint8]:
    """Returns the bucket of each sample to train on, UNUSED for others."""
    codes = np.zeros(len(source), np.uint8)
    if len(buckets) > 1:
        keys, places = np.unique(_size_keys(source), return_inverse=True)
        codes = np.array([assign(_size_of(key), buckets) for key in keys.tolist()], np.uint8)[places]
    codes[~_mask(source, indices)] = UNUSED
    if only_largest_bucket:
        used = set(np.unique(codes).tolist()) - {UNUSED}
        codes[codes != max(used, key=lambda place: buckets[place].num_pixels)] = UNUSED
    return codes
