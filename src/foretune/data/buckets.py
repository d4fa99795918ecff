"""Chooses a limited number of image shapes for the data, and assigns images to them."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Images beyond this aspect ratio are cropped: a bucket only a few pixels high is of no use.
_MOST_ASPECT = 4.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """One shape that images are cropped to."""

    width_px: int
    height_px: int


def choose_buckets(
    sizes_px: Iterable[tuple[int, int]], resolution_px: int, max_buckets: int, step_px: int
) -> tuple[Bucket, ...]:
    """Returns the shapes that most of the images are nearest to, most used first, at most `max_buckets`.

    `sizes_px` are widths and heights of the images. No bucket has more pixels than resolution x resolution, so the
    square is the largest that a step needs. One bucket is always the square.
    """
    square = Bucket(resolution_px, resolution_px)
    if max_buckets == 1:
        return (square,)
    candidates = candidate_buckets(resolution_px, step_px)
    # Many images share a size, so each size is looked up once.
    num_by_size = Counter(sizes_px)
    num_by_candidate: Counter[int] = Counter()
    for (width_px, height_px), count in num_by_size.items():
        num_by_candidate[assign(width_px, height_px, candidates)] += count
    most_used = sorted(num_by_candidate, key=lambda place: (-num_by_candidate[place], place))
    return tuple(candidates[place] for place in most_used[:max_buckets]) or (square,)


def candidate_buckets(resolution_px: int, step_px: int) -> tuple[Bucket, ...]:
    """Returns all possible shapes, the square first, then by distance from it, wide before tall.

    Sides are multiples of `step_px`. If the resolution is not a multiple (32 px with a step of 64), the step is reduced
    to the greatest common divisor, so that all sides have the resolution's divisibility.
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
    """Returns the index of the bucket with the nearest aspect ratio; of equals the first."""
    aspect = math.log(width_px / height_px)
    return min(
        range(len(buckets)),
        key=lambda place: abs(aspect - math.log(buckets[place].width_px / buckets[place].height_px)),
    )
