"""Image files made into pixels: known formats only, turned upright, put on white, of bounded size."""

import io
import struct
import warnings
import zlib

import numpy as np
import numpy.typing as npt
from PIL import Image

from foretune.core.errors import UserError

Pixels = npt.NDArray[np.uint8]

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
# Above what the largest cameras give, below where Pillow itself refuses.
MOST_PIXELS = 160_000_000

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
# What Pillow's readers raise on broken input.
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
    Image.DecompressionBombError,
)


def size_px(data: bytes, name: str) -> tuple[int, int]:
    """Width and height of an image as it will be shown, from its header alone. `name` is for the error."""
    try:
        image, orientation = _opened(data, name)
    except _BROKEN as error:
        raise _unreadable(name, error) from error
    width_px, height_px = image.size
    return (height_px, width_px) if orientation in _LIES_ON_ITS_SIDE else (width_px, height_px)


def decode(data: bytes, name: str) -> Pixels:
    """The pixels (H, W, 3) of an image, turned upright, transparency put on white."""
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
    """The image before its pixels are read, and how it is turned: one rule for size and pixels."""
    with warnings.catch_warnings():
        # Our own limit is the one that decides.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image.width * image.height > MOST_PIXELS:
        raise UserError(
            f"The image {name} has {image.width} x {image.height} pixels; at most "
            f"{MOST_PIXELS // 10**6} million are read. Make it smaller, or take it out of the data."
        )
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


def _unreadable(name: str, error: BaseException) -> UserError:
    return UserError(
        f"The image {name} cannot be read ({str(error) or type(error).__name__}). It must be a whole "
        f"file in one of the formats {', '.join(FORMATS)}: replace it, or take it out of the data."
    )
