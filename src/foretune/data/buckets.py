"""A bounded number of image shapes, chosen for the data at hand, and which of them an image is cut to."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Longer than this, an image is cut: a bucket of few pixels' height serves no model.
_MOST_ASPECT = 4.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """One shape that images are cut to."""

    width_px: int
    height_px: int


def choose_buckets(
    sizes_px: Iterable[tuple[int, int]], resolution_px: int, max_buckets: int, step_px: int
) -> tuple[Bucket, ...]:
    """The shapes that most of the images are nearest to, most used first, at most `max_buckets` of them.

    `sizes_px` are widths and heights of the images. No bucket has more pixels than resolution x resolution,
    so the square is the largest a step ever needs. One bucket is always the square.
    """
    square = Bucket(resolution_px, resolution_px)
    if max_buckets == 1:
        return (square,)
    candidates = candidate_buckets(resolution_px, step_px)
    # Many images share a size: each size is looked up once.
    num_by_size = Counter(sizes_px)
    num_by_candidate: Counter[int] = Counter()
    for (width_px, height_px), count in num_by_size.items():
        num_by_candidate[assign(width_px, height_px, candidates)] += count
    most_used = sorted(num_by_candidate, key=lambda place: (-num_by_candidate[place], place))
    return tuple(candidates[place] for place in most_used[:max_buckets]) or (square,)


def candidate_buckets(resolution_px: int, step_px: int) -> tuple[Bucket, ...]:
    """All shapes there could be, the square first, then by their distance from it, wide before tall.

    Sides are multiples of `step_px`. A resolution that is none (32 px at a step of 64) makes the step
    smaller, to the largest that divides both, so that what the resolution can be divided by, all sides can.
    """
    step_px = math.gcd(resolution_px, step_px)
    most_pixels = resolution_px * resolution_px
    wide = []
    for width_px in range(resolution_px + step_px, math.floor(resolution_px * math.sqrt(_MOST_ASPECT)) + 1, step_px):
        height_px = most_pixels // width_px // step_px * step_px
        if height_px and width_px / height_px <= _MOST_ASPECT:
            wide.append(Bucket(width_px, height_px))
    square = Bucket(resolution_px, resolution_px)
    return (
        square,
        *(turned for bucket in wide for turned in (bucket, Bucket(bucket.height_px, bucket.width_px))),
    )


def assign(width_px: int, height_px: int, buckets: Sequence[Bucket]) -> int:
    """The index of the bucket whose aspect ratio is nearest to the image's; of equals the first."""
    aspect = math.log(width_px / height_px)
    return min(
        range(len(buckets)),
        key=lambda place: abs(aspect - math.log(buckets[place].width_px / buckets[place].height_px)),
    )
