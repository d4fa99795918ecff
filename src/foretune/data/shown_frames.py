"""Turns a decoded video frame into the pixels that a player shows: upright, square pixels, transparency on white."""

import struct
from typing import Any

import numpy as np
from PIL import Image

from foretune.core.errors import UserError
from foretune.data.images import MOST_PIXELS, Pixels

# Transfer characteristics, by FFmpeg's numbers.
_HDR = {16: "PQ", 18: "HLG"}


def shown_pixels(frame: Any, stream: Any, name: str) -> Pixels:
    """Returns the pixels (H, W, 3) of a PyAV frame. `name` is for the error."""
    width_px = max(1, round(frame.width * (stream.sample_aspect_ratio or 1)))
    require_few_pixels(width_px, frame.height, name)
    # A palette can have transparent colours.
    has_alpha = frame.format.name == "pal8" or any(component.is_alpha for component in frame.format.components)
    pixels = frame.to_ndarray(
        format="rgba" if has_alpha else "rgb24",
        width=width_px,
        height=frame.height,
        interpolation="BILINEAR" if width_px == frame.width else "BICUBIC",
        threads=1,
    )
    if has_alpha:
        image = Image.fromarray(pixels)
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        pixels = np.asarray(Image.alpha_composite(white, image).convert("RGB"))
    return np.ascontiguousarray(_upright(pixels, frame))


def require_few_pixels(width_px: int, height_px: int, name: str) -> None:
    """Raises if frames have more pixels than images may have."""
    if width_px * height_px > MOST_PIXELS:
        raise UserError(
            f"The video {name} has {width_px:,} x {height_px:,} pixels; at most {MOST_PIXELS // 10**6} million are "
            "read. Scale it down (clips are cut to data.resolution anyway), or take it out of the data."
        )


def require_sdr(frame: Any, name: str) -> None:
    """Raises for HDR: without tone mapping, which is a matter of taste, its colours are pale."""
    transfer = _HDR.get(frame.color_trc)
    if transfer is not None:
        raise UserError(
            f"The video {name} is HDR ({transfer}): read as 8 bits, its colours would be pale. Convert it to SDR "
            "(BT.709), or take it out of the data."
        )


def _upright(pixels: Pixels, frame: Any) -> Pixels:
    """Turns and mirrors a frame by its display matrix: phones store there how they were held."""
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV does not know all kinds of side data that a frame can have; the rotation it does.
        return np.rot90(pixels, round(frame.rotation / 90))
    if matrix is None:
        return pixels
    # A pixel at (x, y) is shown at (right_x x + right_y y, down_x x + down_y y).
    right_x, down_x, _, right_y, down_y = struct.unpack_from("=5i", bytes(matrix))
    if abs(down_x) > abs(right_x):
        pixels = pixels.swapaxes(0, 1)
        right_x, down_y = right_y, down_x
    return pixels[:: -1 if down_y < 0 else 1, :: -1 if right_x < 0 else 1]
