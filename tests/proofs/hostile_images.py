"""Images that somebody else made: bombs, damage, formats that are not read, and bytes changed at random."""

import io
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

Make = Callable[[], bytes]
_NUM_FUZZED_EACH = 10
_MIB = 2**20


@dataclass(frozen=True)
class HostileImage:
    """An image file, and whether it must be refused; the others may be read or refused."""

    make: Make
    is_refused: bool = True


ALL: dict[str, HostileImage] = {}


def _refused(make: Make) -> Make:
    ALL[make.__name__] = HostileImage(make)
    return make


def _either(make: Make) -> Make:
    ALL[make.__name__] = HostileImage(make, is_refused=False)
    return make


def _saved(form: str, mode: str = "RGB", **options: object) -> bytes:
    written = io.BytesIO()
    noise = random.Random(form).randbytes(64 * 48 * 3)
    Image.frombytes("RGB", (64, 48), noise).convert(mode).save(written, format=form, **options)
    return written.getvalue()


# ---- PNG


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    width_px: int, height_px: int, *chunks: tuple[bytes, bytes], colour: int = 2, depth: int = 8, lace: int = 0
) -> bytes:
    """A PNG that says it has this size; it holds as much as it likes."""
    head = struct.pack(">IIBBBBB", width_px, height_px, depth, colour, 0, 0, lace)
    body = b"".join(_chunk(name, data) for name, data in ((b"IHDR", head), *chunks, (b"IEND", b"")))
    return b"\x89PNG\r\n\x1a\n" + body


_ZEROS = zlib.compress(bytes(20 * _MIB), 9)
for _width, _height in (
    (60_000, 60_000),
    (2**31 - 1, 1),
    (1, 2**31 - 1),
    (2**31 - 1, 2**31 - 1),
    (16_000, 10_001),
    (0, 0),
):
    ALL[f"png_of_{_width}_x_{_height}"] = HostileImage(lambda size=(_width, _height): png(*size, (b"IDAT", _ZEROS)))  # type: ignore[misc]


@_refused
def png_with_a_bomb_in_zipped_text() -> bytes:
    return png(64, 64, *[(b"zTXt", b"k\0\0" + _ZEROS)] * 100, (b"IDAT", zlib.compress(bytes(64 * 193))))


@_either
def png_with_a_bomb_in_international_text() -> bytes:
    return png(64, 64, *[(b"iTXt", b"k\0\1\0\0\0" + _ZEROS)] * 100, (b"IDAT", zlib.compress(bytes(64 * 193))))


@_either
def png_with_a_bomb_in_its_profile() -> bytes:
    return png(64, 64, (b"iCCP", b"p\0\0" + _ZEROS), (b"IDAT", zlib.compress(bytes(64 * 193))))


@_either
def png_with_more_pixels_than_it_says() -> bytes:
    return png(8, 8, (b"IDAT", _ZEROS))


@_refused
def png_without_pixels() -> bytes:
    return png(64, 64)


@_refused
def interlaced_png_bomb() -> bytes:
    return png(40_000, 40_000, (b"IDAT", _ZEROS), lace=1)


@_refused
def png_with_an_unknown_depth() -> bytes:
    return png(8, 8, (b"IDAT", _ZEROS), depth=77)


@_refused
def png_with_a_chunk_of_gibibytes() -> bytes:
    return png(8, 8)[:33] + struct.pack(">I", 2**31 - 1) + b"IDAT" + bytes(100)


@_either
def png_of_many_frames() -> bytes:
    frames = [Image.new("RGB", (64, 64), (number, 0, 0)) for number in range(50)]
    written = io.BytesIO()
    frames[0].save(written, format="PNG", save_all=True, append_images=frames[1:])
    return written.getvalue()


# ---- JPEG


@_refused
def jpeg_of_the_largest_size() -> bytes:
    content = bytearray(_saved("JPEG"))
    place = content.index(b"\xff\xc0")
    content[place + 5 : place + 9] = b"\xff\xff\xff\xff"
    return bytes(content)


@_either
def jpeg_of_many_scans() -> bytes:
    content = _saved("JPEG", progressive=True)
    place = content.rindex(b"\xff\xda")
    return content[:place] + content[place:-2] * 2000 + content[-2:]


@_refused
def jpeg_cut_short() -> bytes:
    return _saved("JPEG", quality=95)[:700]


@_either
def jpeg_with_an_orientation_that_is_none() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 9999
    return _saved("JPEG", exif=exif)


@_either
def jpeg_with_exif_that_leads_to_itself() -> bytes:
    table = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 0x8769, 4, 1, 8) + struct.pack("<I", 8)
    return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(table) + 2) + table + _saved("JPEG")[2:]


# ---- TIFF, BMP, WebP


def _tiff(entries: list[tuple[int, int, int, int]], body: bytes = b"") -> bytes:
    table = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + struct.pack("<H", len(entries)) + table + bytes(4)


def _grey(width_px: int, height_px: int, compression: int, strip: bytes) -> bytes:
    entries = [(256, 4, 1, width_px), (257, 4, 1, height_px), (258, 3, 1, 8), (259, 3, 1, compression), (262, 3, 1, 1)]
    return _tiff([*entries, (273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, height_px), (279, 4, 1, len(strip))], strip)


for _name, _compression in (("deflate", 8), ("lzw", 5), ("packbits", 32773), ("jpeg", 7), ("fax", 4)):
    ALL[f"tiff_bomb_in_{_name}"] = HostileImage(lambda kind=_compression: _grey(100_000, 100_000, kind, _ZEROS))  # type: ignore[misc]


@_refused
def tiff_with_a_table_of_gibibytes() -> bytes:
    return _tiff([(256, 4, 2**30, 8), (257, 4, 2**30, 8), (273, 4, 2**31 - 1, 8)])


@_refused
def tiff_that_leads_to_itself() -> bytes:
    return (
        b"II*\0"
        + struct.pack("<I", 8)
        + struct.pack("<H", 1)
        + struct.pack("<HHII", 330, 4, 1, 8)
        + struct.pack("<I", 8)
    )


@_refused
def tiff_of_nothing() -> bytes:
    return b"MM\0*\0\0\0\x08"


@_refused
def bmp_bomb() -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, 90_000, 90_000, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head + bytes(100)


@_refused
def bmp_bomb_with_runs() -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, 60_000, 60_000, 1, 8, 1, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head + b"\xff\0" * 10_000


@_refused
def bmp_of_a_height_below_zero() -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, 2**31 - 1, -(2**31), 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head


@_refused
def webp_of_the_largest_size() -> bytes:
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + b"\xff" * 6
    return b"RIFF" + struct.pack("<I", len(body)) + body


@_refused
def webp_of_nothing() -> bytes:
    return b"RIFF" + struct.pack("<I", 4) + b"WEBP"


@_either
def webp_of_many_frames() -> bytes:
    frames = [Image.new("RGB", (64, 64), (number, 0, 0)) for number in range(50)]
    written = io.BytesIO()
    frames[0].save(written, format="WEBP", save_all=True, append_images=frames[1:])
    return written.getvalue()


# ---- formats that are not read: some of Pillow's readers start other programs, or are seldom looked at

_OTHERS = {
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n(/etc/passwd) run\n%%EOF\n",
    "pdf": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\n",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "xbm": b"#define a_width 64\n#define a_height 64\nstatic char a_bits[] = {0x00};\n",
    "psd": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 30_000, 30_000, 8, 3) + bytes(100),
    "fits": b"SIMPLE  =                    T".ljust(80)
    + b"BITPIX  =                    8".ljust(80)
    + b"END".ljust(2720),
    "wmf": b"\xd7\xcd\xc6\x9a" + bytes(100),
    "dds": b"DDS " + struct.pack("<II", 124, 0x1007) + struct.pack("<II", 65_000, 65_000) + bytes(120),
    "fli": struct.pack("<IHHHH", 128, 0xAF12, 1, 64, 64) + bytes(120),
    "icns": b"icns" + struct.pack(">I", 2**31 - 1) + b"ic10" + bytes(100),
    "nothing": b"",
    "one_byte": b"\x89",
    "shell": b"#!/bin/sh\ntouch canary\n",
}
for _name, _content in _OTHERS.items():
    ALL[f"not_read_{_name}"] = HostileImage(lambda content=_content: content)  # type: ignore[misc]
for _form in ("GIF", "ICO", "PPM", "TGA", "PCX", "JPEG2000", "SGI", "IM", "MSP", "DDS"):
    _mode = "1" if _form == "MSP" else "RGB"
    ALL[f"not_read_{_form.lower()}_file"] = HostileImage(lambda form=_form, mode=_mode: _saved(form, mode))  # type: ignore[misc]


# ---- bytes changed at random, the same ones each time


def _fuzzed(form: str, seed: int) -> bytes:
    chance = random.Random(f"{form} {seed}")
    content = bytearray(_saved(form))
    for _ in range(chance.choice([1, 4, 16, 64])):
        place = chance.randrange(len(content))
        match chance.randrange(4):
            case 0:
                content[place] = chance.randrange(256)
            case 1:
                content[place : place + 4] = struct.pack(">I", chance.choice([0, 1, 2**31 - 1, 2**32 - 1]))
            case 2:
                del content[place : place + chance.randrange(1, 50)]
            case _:
                content[place:place] = chance.randbytes(chance.randrange(1, 50))
    return bytes(content)


for _form in ("PNG", "JPEG", "WEBP", "BMP", "TIFF"):
    for _seed in range(_NUM_FUZZED_EACH):
        _make = lambda form=_form, seed=_seed: _fuzzed(form, seed)  # noqa: E731
        ALL[f"fuzzed_{_form.lower()}_{_seed}"] = HostileImage(_make, is_refused=False)
