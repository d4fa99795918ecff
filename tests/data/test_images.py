"""Files become upright, opaque pixels of the size that was announced, or a sentence that names them."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from foretune.core.errors import UserError
from foretune.data.images import decode, size_px


def _encoded(image: Image.Image, form: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP", "JPEG", "TIFF"])
def test_each_format_is_read(form: str):
    data = _encoded(Image.new("RGB", (8, 6), (200, 30, 60)), form, **({"lossless": True} if form == "WEBP" else {}))
    assert size_px(data, "x") == (8, 6)
    pixels = decode(data, "x")
    assert pixels.shape == (6, 8, 3)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - (200, 30, 60)).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_camera_says(orientation: int):
    # What is shown: red on the left, green on the right, blue at the bottom.
    shown = np.full((24, 32, 3), 0, dtype=np.uint8)
    shown[:, :16], shown[:, 16:], shown[16:] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = Image.fromarray(shown)
    stored = stored.transpose(undo[orientation]) if orientation in undo else stored
    exif = Image.Exif()
    exif[0x0112] = orientation
    for form in ("PNG", "TIFF"):
        data = _encoded(stored, form, exif=exif)
        assert size_px(data, "x") == (32, 24)
        assert np.array_equal(decode(data, "x"), shown)


def test_the_first_page_of_a_tiff_is_read():
    pages = [Image.new("RGB", (4, 4), colour) for colour in ("white", "black")]
    data = _encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    assert (decode(data, "x.tiff") == 255).all()


def test_a_tiff_of_floats_is_refused_rather_than_clipped():
    data = _encoded(Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)), "TIFF")
    with pytest.raises(UserError, match=r"x\.tif has 32 bits per channel; 8 and 16 are read"):
        size_px(data, "x.tif")


@pytest.mark.parametrize(("mode", "colour"), [("RGBA", (0, 0, 0, 0)), ("LA", (0, 0))])
def test_transparent_becomes_white(mode: str, colour: tuple[int, ...]):
    assert (decode(_encoded(Image.new(mode, (4, 4), colour), "PNG"), "x") == 255).all()


def test_a_transparent_palette_colour_becomes_white():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 90, 90, 90])
    assert (decode(_encoded(image, "PNG", transparency=1), "x") == 255).all()
    assert (decode(_encoded(image, "PNG", transparency=0), "x") == 90).all()


def test_sixteen_bits_of_grey_become_eight():
    image = Image.fromarray(np.full((4, 4), 0x8040, dtype=np.uint16))
    assert (decode(_encoded(image, "PNG"), "x") == 0x80).all()


@pytest.mark.parametrize("kept", [0, 20, 60, 0.5])
def test_a_broken_file_is_named(kept: float):
    rng = np.random.default_rng(0)
    data = _encoded(Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)), "JPEG")
    cut = data[: int(kept if kept == 0 or kept > 1 else kept * len(data))]
    with pytest.raises(UserError, match=r"holiday\.jpg") as raised:
        decode(cut, "holiday.jpg")
    assert " object at 0x" not in str(raised.value)


def test_a_format_off_the_list_is_refused():
    with pytest.raises(UserError, match="PNG, JPEG, WEBP, BMP, TIFF"):
        size_px(_encoded(Image.new("RGB", (4, 4)), "GIF"), "x.png")


@pytest.mark.parametrize(
    ("side", "has"), [(13_000, "13,000 x 13,000"), (14_000, "196,000,000"), (60_000, "3,600,000,000")]
)
def test_an_image_of_too_many_pixels_is_refused_before_it_is_read(side: int, has: str):
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    for read in (size_px, decode):
        with pytest.raises(
            UserError, match=rf"big\.png has {has} pixels; at most 160 million are read\. Scale it down"
        ):
            read(data, "big.png")
