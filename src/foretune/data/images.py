"""Decodes image files: known formats only, EXIF orientation applied, transparency on white, limited size."""

import io
import re
import struct
import warnings
import zlib

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from foretune.core.errors import UserError
from foretune.data.formats import IMAGE_SUFFIXES

Pixels = npt.NDArray[np.uint8]

SUFFIXES = IMAGE_SUFFIXES
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
# Above the largest cameras, below the limit of Pillow itself.
MOST_PIXELS = 160_000_000
MOST_FILE_BYTES = 512 * 2**20
"""Limit for one image file: MOST_PIXELS with 8 bits per channel take less, even uncompressed."""
# Modes whose values have no fixed range: conversion to 8 bits would silently clip them.
_WITHOUT_RANGE = ("F", "I")

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LIES_ON_ITS_SIDE = frozenset({5, 6, 7, 8})
# Exceptions that Pillow's readers raise on broken input.
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    EOFError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
)


def size_px(data: bytes, name: str) -> tuple[int, int]:
    """Returns width and height of an image after orientation, from its header only. `name` is for the error."""
    try:
        image, orientation = _opened(data, name)
    except _BROKEN as error:
        raise _unreadable(name, error) from error
    width_px, height_px = image.size
    return (height_px, width_px) if orientation in _LIES_ON_ITS_SIDE else (width_px, height_px)


def decode(data: bytes, name: str) -> Pixels:
    """Returns the pixels (H, W, 3) of an image, with orientation applied and transparency on white."""
    try:
        image, orientation = _opened(data, name)
        image.load()
        upright = _UPRIGHT.get(orientation)
        if upright is not None:
            image = image.transpose(upright)
        return np.asarray(_opaque(image))
    except _BROKEN as error:
        raise _unreadable(name, error) from error


def _opened(data: bytes, name: str) -> tuple[Image.Image, int]:
    """Returns the image before decoding, and its orientation: one rule for size and pixels."""
    with warnings.catch_warnings():
        # Our own limit decides.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        except Image.DecompressionBombError as error:
            # Pillow's limit is above ours, and only its error message has the number of pixels.
            num_pixels = re.search(r"\d+", str(error))
            raise _too_large(name, f"{int(num_pixels[0]):,}" if num_pixels else "too many") from error
    if image.width * image.height > MOST_PIXELS:
        raise _too_large(name, f"{image.width:,} x {image.height:,}")
    if image.format == "TIFF":
        if image.mode in _WITHOUT_RANGE:
            raise UserError(
                f"The image {name} has 32 bits per channel; 8 and 16 are read. Convert it, or take it out of the data."
            )
        # Pillow itself applies the orientation of this format, and reports the final size.
        return image, 1
    orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    return image, orientation if isinstance(orientation, int) else 1


def _opaque(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)).convert("RGB")
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        shown = image.convert("RGBA")
        white = Image.new("RGBA", shown.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, shown).convert("RGB")
    return image.convert("RGB")


def _too_large(name: str, num_pixels: str) -> UserError:
    return UserError(
        f"The image {name} has {num_pixels} pixels; at most {MOST_PIXELS // 10**6} million are read. Scale it down "
        "(images are cut to data.resolution anyway), or take it out of the data."
    )


def _unreadable(name: str, error: BaseException) -> UserError:
    reason = str(error) or type(error).__name__
    if isinstance(error, UnidentifiedImageError):
        # Pillow's message contains the address of an object, and no reason.
        reason = "its content is in none of these formats, or its header is damaged"
    return UserError(
        f"The image {name} cannot be read ({reason}). It must be a whole file in one of the formats "
        f"{', '.join(FORMATS)}: replace it, or take it out of the data."
    )
