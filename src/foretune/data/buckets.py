"""Chooses a limited number of shapes for images and clips, and assigns samples to them."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretune.choices.picture_size import legal_num_frames

# Images beyond this aspect ratio are cropped: a bucket only a few pixels high is of no use.
_MOST_ASPECT = 4.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """One shape that images or clips are cropped to."""

    width_px: int
    height_px: int
    num_frames: int | None = None
    """None for a model that takes images without a dimension for frames."""

    @property
    def num_pixels(self) -> int:
        """Over all frames."""
        return self.width_px * self.height_px * (self.num_frames or 1)

    @property
    def text(self) -> str:
        """As messages name it: `512 px`, `416x240 px`, `416x240 px, 33 frames`."""
        sides = f"{self.resolution} px"
        if self.num_frames is None:
            return sides
        return f"{sides}, 1 frame" if self.num_frames == 1 else f"{sides}, {self.num_frames} frames"

    @property
    def shorter_px(self) -> int:
        return min(self.width_px, self.height_px)

    @property
    def resolution(self) -> int | str:
        """As `data.resolution` takes it: the side of a square, or `416x240`."""
        return self.width_px if self.width_px == self.height_px else f"{self.width_px}x{self.height_px}"

    def facts(self) -> dict[str, Any]:
        """What a run writes down about its largest bucket."""
        frames = {} if self.num_frames is None else {"num_frames": self.num_frames}
        return {"size_px": [self.width_px, self.height_px], **frames}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Bucket":
        """Reads what `facts` wrote; earlier runs wrote the side of a square."""
        width_px, height_px = facts.get("size_px") or (facts["resolution_px"],) * 2
        return cls(int(width_px), int(height_px), facts.get("num_frames"))


@dataclass(frozen=True, slots=True)
class SampleSize:
    """What decides a sample's bucket."""

    width_px: int
    height_px: int
    num_frames: int = 1


def choose_buckets(
    sizes: Iterable[SampleSize] | Mapping[SampleSize, int],
    largest: Bucket,
    max_buckets: int,
    step_px: int,
    frames_per_latent: int = 1,
) -> tuple[Bucket, ...]:
    """Returns the shapes that most of the samples are nearest to, most used first, at most `max_buckets`.

    `sizes` has the size of each sample, or the number of samples of each size.

    No bucket has more pixels than `largest`, nor more frames, so that it is the most that a step needs. Clips that are
    shorter than it get buckets of the most frames that the model takes of them.
    One bucket has the length of the shortest clips, whether it is much used or not.
    """
    if max_buckets == 1:
        return (largest,)
    candidates = candidate_buckets(largest, step_px)
    # Many samples share a size, so each size is looked up once.
    num_by_size = Counter(sizes)
    num_by_candidate: Counter[tuple[int, int | None]] = Counter()
    for size, count in num_by_size.items():
        num_frames = largest.num_frames
        if num_frames is not None and size.num_frames < num_frames:
            num_frames = legal_num_frames(size.num_frames, frames_per_latent)
        place = _nearest(size, candidates)
        num_by_candidate[place, num_frames] += count
    most_used = sorted(num_by_candidate, key=lambda key: (-num_by_candidate[key], key[0], -(key[1] or 0)))
    chosen = most_used[:max_buckets]
    shortest = min((num_frames or 1 for _, num_frames in most_used), default=1)
    if all((num_frames or 1) > shortest for _, num_frames in chosen):
        # Every clip fills a bucket of the shortest length.
        chosen[-1:] = [key for key in most_used if (key[1] or 1) == shortest][:1]
    return tuple(replace(candidates[place], num_frames=num_frames) for place, num_frames in chosen) or (largest,)


def candidate_buckets(largest: Bucket, step_px: int) -> tuple[Bucket, ...]:
    """Returns all possible shapes, the largest first, then by distance from the square, wide before tall.

    Sides are multiples of `step_px`. If those of the largest are not (32 px with a step of 64), the step is reduced to
    the greatest common divisor, so that all sides have its divisibility.
    """
    step_px = math.gcd(largest.width_px, largest.height_px, step_px)
    most_pixels = largest.width_px * largest.height_px
    side_px = math.isqrt(most_pixels) // step_px * step_px
    wide = []
    for width_px in range(side_px + step_px, math.floor(side_px * math.sqrt(_MOST_ASPECT)) + 1, step_px):
        height_px = most_pixels // width_px // step_px * step_px
        if height_px and width_px / height_px <= _MOST_ASPECT:
            wide.append((width_px, height_px))
    sides = [(side_px, side_px), *(turned for width, height in wide for turned in ((width, height), (height, width)))]
    buckets = [Bucket(width_px, height_px, largest.num_frames) for width_px, height_px in sides]
    return (largest, *(bucket for bucket in buckets if bucket != largest))


def assign(size: SampleSize, buckets: Sequence[Bucket]) -> int:
    """Returns the index of a sample's bucket: of the longest that it fills, that with the nearest aspect ratio.

    Of equals it is the first. A clip that fills none gets one of the shortest; whether it may is checked elsewhere.
    """
    fitting = [bucket.num_frames or 1 for bucket in buckets if (bucket.num_frames or 1) <= size.num_frames]
    num_frames = max(fitting, default=min(bucket.num_frames or 1 for bucket in buckets))
    places = [place for place, bucket in enumerate(buckets) if (bucket.num_frames or 1) == num_frames]
    return places[_nearest(size, [buckets[place] for place in places])]


def _nearest(size: SampleSize, buckets: Sequence[Bucket]) -> int:
    aspect = math.log(size.width_px / size.height_px)
    return min(
        range(len(buckets)),
        key=lambda place: abs(aspect - math.log(buckets[place].width_px / buckets[place].height_px)),
    )
