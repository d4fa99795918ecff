"""Which frames of a video are taken at a frame rate: by timestamps, so that variable frame rates work."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from foretune.core.errors import UserError

FrameT = TypeVar("FrameT")

# 23.976 counts as 24: nobody means the difference, and a repeated frame would be worse.
_RATES_EQUAL_WITHIN = Fraction(1, 100)
# If a tick is a larger share of a frame, timestamps are multiples of the frame's duration, and exact.
_SHORT_TICK = Fraction(1, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The timestamps of a video's frames, in short."""

    num_frames: int
    span_s: Fraction
    """From the timestamp of the first frame to that of the last."""
    tick_s: Fraction
    """Unit of the timestamps: each of them is rounded to it, in Matroska to a millisecond."""

    @property
    def rate_fps(self) -> Fraction | None:
        """The average frame rate; None for a single frame, or without usable timestamps."""
        return (self.num_frames - 1) / self.span_s if self.num_frames > 1 and self.span_s > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Takes the frames that are shown at 0, `step_s`, 2 `step_s` and so on, counted from the first frame."""

    step_s: Fraction
    late_s: Fraction
    """A frame whose timestamp is later by so much is on time, because timestamps are rounded."""

    def num_frames(self, timing: Timing) -> int:
        """Returns how many frames `pick` returns; none after the timestamp of the last frame."""
        return (timing.span_s + self.late_s) // self.step_s + 1

    def pick(self, frames: Iterable[tuple[Fraction, FrameT]]) -> Iterator[FrameT]:
        """Yields the frame that is shown at each time, from frames with their times in the order of display.

        It reads one frame further than the last one that is asked for.
        """
        next_s, shown = Fraction(0), None
        for time_s, frame in frames:
            while shown is not None and next_s + self.late_s < time_s:
                yield shown[1]
                next_s += self.step_s
            shown = (time_s, frame)
        while shown is not None and next_s <= shown[0] + self.late_s:
            yield shown[1]
            next_s += self.step_s


def sampling_at(fps: float, timing: Timing, name: str) -> Sampling:
    """Returns how frames are taken at a frame rate. Raises if the video has fewer, since frames would repeat."""
    step_s = 1 / Fraction(fps)
    if timing.num_frames == 1:
        return Sampling(step_s=step_s, late_s=Fraction(0))
    rate_fps = timing.rate_fps
    if rate_fps is None:
        raise UserError(
            f"The video {name} has no usable timestamps, so frames cannot be taken at data.fps: {fps:g}. Convert it, "
            "or take it out of the data."
        )
    own_step_s = 1 / rate_fps
    late_s = timing.tick_s if timing.tick_s <= _SHORT_TICK * own_step_s else Fraction(0)
    # Rounding can make the span longer by a tick, which is much in a short clip.
    shortest_step_s = (timing.span_s - late_s) / (timing.num_frames - 1)
    if step_s * (1 + _RATES_EQUAL_WITHIN) < shortest_step_s:
        raise UserError(
            f"The video {name} has {float(rate_fps):.5g} frames per second, fewer than data.fps: {fps:g}, so frames "
            "would repeat. Set data.fps to that or less, or take the video out of the data."
        )
    if step_s <= own_step_s * (1 + _RATES_EQUAL_WITHIN):
        # Cameras are early and late by a few milliseconds: at the video's own rate, each frame is taken once.
        return Sampling(step_s=own_step_s, late_s=own_step_s / 2)
    return Sampling(step_s=step_s, late_s=late_s)
