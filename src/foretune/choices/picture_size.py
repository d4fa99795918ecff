"""The size of images and clips: as an experiment asks for it, and as a model takes it."""

import re

from foretune.core.errors import Refused

SMALL_SIDE_PX = 256
"""Longer side of what a model is tried with where any size will do."""
_LEAST_PX, _MOST_PX = 8, 8192
_WANTED = 'must be a whole number of pixels such as 512, or a width and a height such as "416x240" or "416,240"'
_SIDES = re.compile(r"([0-9]{1,5}) ?[x×,] ?([0-9]{1,5})")


def checked_resolution(asked: object) -> int | str | None:
    """Returns a resolution in its one form: a number, or `WIDTHxHEIGHT`; raises ValueError for anything else."""
    if asked is None:
        return None
    if isinstance(asked, float) and asked.is_integer():
        asked = int(asked)
    if not isinstance(asked, int | str) or isinstance(asked, bool):
        raise ValueError(_WANTED)
    if isinstance(asked, str) and asked.isdecimal():
        asked = int(asked)
    sides = (asked, asked) if isinstance(asked, int) else width_and_height(asked)
    if not all(_LEAST_PX <= side <= _MOST_PX for side in sides):
        raise ValueError(f"must be from {_LEAST_PX} to {_MOST_PX} px")
    return asked if isinstance(asked, int) else f"{sides[0]}x{sides[1]}"


def sides_px(
    resolution: int | str | None, usual_px: tuple[int, int], multiple_px: int, *, is_video: bool
) -> tuple[int, int]:
    """Returns height and width of what an experiment asks for; what it leaves out is usual for the model.

    One number is the side of a square image. A clip keeps the usual aspect ratio, and the number is its shorter side.
    """
    if resolution is None:
        return usual_px
    if isinstance(resolution, str):
        width_px, height_px = width_and_height(resolution)
        return height_px, width_px
    if not is_video:
        return resolution, resolution
    scale = resolution / min(usual_px)
    height_px, width_px = (max(1, round(side * scale / multiple_px)) * multiple_px for side in usual_px)
    return height_px, width_px


def legal_num_frames(most: int, frames_per_latent: int) -> int:
    """Returns the longest length up to `most` that gives whole latent frames: 4n + 1 if four frames share one."""
    return max(0, most - 1) // frames_per_latent * frames_per_latent + 1


def small_sides_px(width_px: int, height_px: int, multiple_px: int) -> tuple[int, int]:
    """Returns width and height of a picture of at most `SMALL_SIDE_PX`, in about the same shape; small ones stay."""
    share = SMALL_SIDE_PX / max(width_px, height_px)
    if share >= 1:
        return width_px, height_px
    small_width_px, small_height_px = (
        max(1, round(side_px * share / multiple_px)) * multiple_px for side_px in (width_px, height_px)
    )
    return small_width_px, small_height_px


def small_num_frames(num_frames: int, frames_per_latent: int) -> int:
    """Returns the fewest frames that are more than one latent frame; no more than there are."""
    return min(num_frames, 1 + frames_per_latent)


def refuse_illegal_length(num_frames: int, frames_per_latent: int, key: str) -> None:
    """Raises for a length that gives no whole latent frames, with the nearest that does. `key` asked for it."""
    below = legal_num_frames(num_frames, frames_per_latent)
    above = below + frames_per_latent
    if below != num_frames:
        nearest = below if num_frames - below <= above - num_frames else above
        raise Refused(
            f"{key}: this model does not take {num_frames} frames, but {below} or {above}. Nearest: {key}={nearest}"
        )


def resolution_text(height_px: int, width_px: int, *, is_video: bool) -> str:
    """Returns sides as `data.resolution` takes them; one number means a square for images only."""
    return str(width_px) if height_px == width_px and not is_video else f"{width_px}x{height_px}"


def width_and_height(text: str) -> tuple[int, int]:
    """Returns both sides of a size as one types it, `416x240` or `416,240`; raises ValueError for anything else."""
    found = _SIDES.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(_WANTED)
    return int(found[1]), int(found[2])
