"""Archives that somebody else made: names that lead out, links, devices, bombs, lies, collisions.

Each is a function that writes an archive into a folder. Every one that is not refused as a whole holds `good.png`, too.
"""

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Make = Callable[[Path], bytes | None]
_MIB = 2**20
GOOD = "good.png"


def picture() -> bytes:
    """A PNG of one pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")


@dataclass(frozen=True)
class HostileArchive:
    """An archive, and what must become of it."""

    make: Make
    """Returns its bytes, or puts something else at the path that it is given."""
    refused_with: str | None = None
    """Words of the message; None where it is imported without the hostile member."""
    skipped_with: str | None = None
    """Words of the reason why the hostile member is left out; None where nothing is."""


ALL: dict[str, HostileArchive] = {}


def _refused(words: str) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        ALL[make.__name__] = HostileArchive(make, refused_with=words)
        return make

    return add


def _made(pack: Callable[..., bytes], member: tuple[Any, ...], **options: Any) -> Make:
    return lambda _: pack(member, **options)


# ---- tar


def tar_of(*members: tuple[str, bytes | None, dict[str, Any]], compression: str = "", pax: bool = True) -> bytes:
    """A tar with a good picture and these members: name, content, other fields of the header."""
    written = io.BytesIO()
    form = tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT
    with tarfile.open(fileobj=written, mode=f"w:{compression}", format=form) as archive:  # type: ignore[call-overload]
        for name, content, fields in ((GOOD, picture(), {}), *members):
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            for key, value in fields.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content or b""))
    return written.getvalue()


def _header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    fields = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size + b"00000000000\0" + b" " * 8 + kind
    block = fields.ljust(257, b"\0") + b"ustar\x0000"
    block = block.ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _octal(size: int) -> bytes:
    return b"%011o\0" % size


def _tar_names(reason: str, **names: str) -> None:
    for case, name in names.items():
        ALL[f"tar_{case}"] = HostileArchive(
            _made(tar_of, (name, picture(), {})),
            skipped_with=reason,
        )
        ALL[f"gnu_tar_{case}"] = HostileArchive(
            _made(tar_of, (name, picture(), {}), pax=False),
            skipped_with=reason,
        )


_tar_names(
    "leads out",
    goes_up="../escaped.png",
    goes_far_up="../" * 20 + "tmp/escaped.png",
    goes_up_in_between="a/../../escaped.png",
    goes_up_with_backslashes="..\\..\\escaped.png",
    goes_up_behind_a_long_name="a/" * 60 + "../" * 61 + "escaped.png",
)
_tar_names(
    "absolute", is_absolute="/tmp/escaped.png", has_a_drive="C:\\escaped.png", is_of_a_server="\\\\host\\escaped.png"
)
_tar_names(
    "characters", has_line_breaks="a\nError: all is well.png", turns_around="\u202egnp.exe.png", colon="ab:c.png"
)
_tar_names("Windows", is_a_device="CON.png", ends_with_a_dot="a./b.png")
_tar_names("too long", is_long="x" * 3000 + ".png", is_deep="d/" * 500 + "a.png")
_tar_names("is hidden", hidden=".ssh/a.png")
_tar_names("neither", script="setup.py", program="a.sh")


def _tar_kinds(reason: str, **kinds: tuple[bytes, str]) -> None:
    for case, (kind, target) in kinds.items():
        fields = {"type": kind, "linkname": target}
        ALL[f"tar_{case}"] = HostileArchive(
            _made(tar_of, ("a.png", None, fields)),
            skipped_with=reason,
        )


_tar_kinds(
    "is a link",
    link_to_a_file=(tarfile.SYMTYPE, "/etc/passwd"),
    link_up=(tarfile.SYMTYPE, "../.."),
    hard_link=(tarfile.LNKTYPE, "/etc/passwd"),
    hard_link_up=(tarfile.LNKTYPE, "../secret"),
)
_tar_kinds(
    "is a device",
    pipe=(tarfile.FIFOTYPE, ""),
    character_device=(tarfile.CHRTYPE, ""),
    block_device=(tarfile.BLKTYPE, ""),
)


def _hostile(reason: str | None = None) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        ALL[make.__name__] = HostileArchive(make, skipped_with=reason)
        return make

    return add


@_hostile("is a link")
def tar_file_through_a_link(_: Path) -> bytes:
    return tar_of(("out", None, {"type": tarfile.SYMTYPE, "linkname": ".."}), ("out/escaped.png", picture(), {}))


@_hostile("another file")
def tar_with_a_name_twice(_: Path) -> bytes:
    return tar_of((GOOD, picture() + b"other", {}))


@_hostile("case or accents")
def tar_with_names_that_differ_in_case(_: Path) -> bytes:
    return tar_of(("GOOD.PNG", picture(), {}))


@_hostile("case or accents")
def tar_with_names_that_differ_in_the_form_of_letters(_: Path) -> bytes:
    return tar_of(("caf\u00e9.png", picture(), {}), ("cafe\u0301.png", picture(), {}))


@_hostile("case or accents")
def tar_with_folders_that_differ_in_case(_: Path) -> bytes:
    return tar_of(("A/x.png", picture(), {}), ("a/y.png", picture(), {}))


@_hostile("lies in what is a file")
def tar_with_a_file_in_a_file(_: Path) -> bytes:
    return tar_of((f"{GOOD}/escaped.png", picture(), {}))


@_hostile("name of a folder")
def tar_with_a_file_that_is_a_folder(_: Path) -> bytes:
    return tar_of(("x.png/a.png", picture(), {}), ("x.png", picture(), {}))


@_hostile("characters")
def tar_with_a_name_that_is_not_utf8(_: Path) -> bytes:
    data = picture()
    body = data + bytes(-len(data) % 512)
    return tar_of()[:1024] + _header(b"\xff\xfe.png", _octal(len(data))) + body + bytes(1024)


@_hostile("is a sparse file")
def tar_with_a_sparse_file(_: Path) -> bytes:
    return tar_of()[:1024] + _header(b"a.png", _octal(0), b"S") + bytes(1024)


@_hostile("is a sparse file")
def tar_with_a_sparse_file_of_pax(_: Path) -> bytes:
    pax = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**60)}
    return tar_of(("a.png", b"1\n0\n" + bytes(508), {"pax_headers": pax}))


@_hostile("is none")
def tar_with_a_program_named_like_an_image(_: Path) -> bytes:
    return tar_of(("a.png", b"\x7fELF" + bytes(1000), {"mode": 0o4755}))


@_hostile("is none")
def tar_with_a_page_named_like_an_image(_: Path) -> bytes:
    return tar_of(("a.jpg", b"<script>alert(1)</script>", {}))


@_hostile()
def tar_with_a_file_that_anybody_may_run(_: Path) -> bytes:
    return tar_of(("a.png", picture(), {"mode": 0o6777, "uid": 0}))


@_hostile("has more than")
def tar_with_a_caption_of_megabytes(_: Path) -> bytes:
    return tar_of(("good.txt", b"x" * 50 * _MIB, {}))


@_hostile("text without an image")
def tar_with_texts_of_no_image(_: Path) -> bytes:
    return tar_of(*((f"{number}.txt", b"x", {}) for number in range(1000)))


@_refused("continued for")
def tar_with_an_endless_pax_header(_: Path) -> bytes:
    return _header(b"x", _octal(8**11 - 1), b"x") + bytes(1024)


@_refused("continued for")
def tar_with_an_endless_long_name(_: Path) -> bytes:
    return _header(b"x", _octal(8**11 - 1), b"L") + bytes(1024)


@_refused("extended header")
def tar_with_a_pax_header_that_lies(_: Path) -> bytes:
    return _header(b"x", _octal(512), b"x") + b"99999999 path=../escaped.png\n".ljust(512, b"\0") + bytes(1024)


@_refused("size that is no number")
def tar_with_a_size_below_zero(_: Path) -> bytes:
    return _header(b"a.png", b"\xff" * 12) + bytes(1024)


@_refused("cut short")
def tar_with_a_size_of_exbibytes(_: Path) -> bytes:
    return _header(b"a.bin", b"\x80" + bytes(3) + struct.pack(">Q", 2**62)) + bytes(1024)


@_refused("checksum")
def tar_with_a_damaged_header(_: Path) -> bytes:
    content = bytearray(tar_of(("a.png", picture(), {})))
    content[1024 + 10] ^= 0xFF
    return bytes(content)


@_refused("cut short")
def tar_cut_short(_: Path) -> bytes:
    return tar_of(("a.png", b"\x89PNG\r\n\x1a\n" + bytes(5000), {}))[:4000]


@_refused("cut short")
def gzipped_tar_cut_short(_: Path) -> bytes:
    return gzip.compress(tar_of(("a.png", picture(), {})))[:-20]


def _zeros_in_a_tar(num_bytes: int, compress: Callable[[bytes], bytes]) -> bytes:
    """A tar of one file of zeros, as streams one after the other, which all of these formats allow."""
    block = compress(bytes(64 * _MIB))
    return compress(_header(b"a.png", _octal(num_bytes))) + block * (num_bytes // (64 * _MIB))


@_refused("times its size")
def gzip_bomb(_: Path) -> bytes:
    return _zeros_in_a_tar(8**11 - 8**11 % (64 * _MIB) - 64 * _MIB, lambda data: gzip.compress(data, 9, mtime=0))


@_refused("times its size")
def bzip2_bomb(_: Path) -> bytes:
    return _zeros_in_a_tar(6400 * _MIB, lambda data: bz2.compress(data, 9))


@_refused("times its size")
def xz_bomb(_: Path) -> bytes:
    return _zeros_in_a_tar(6400 * _MIB, lambda data: lzma.compress(data, preset=0))


@_refused("times its size")
def gzipped_tar_of_a_million_names(_: Path) -> bytes:
    return gzip.compress(_header(b"a.png", _octal(0)) * 1_000_000, 6, mtime=0)


@_refused("damaged")
def gzip_in_gzip(_: Path) -> bytes:
    return gzip.compress(gzip.compress(tar_of()))


@_refused("damaged")
def gzip_of_noise(_: Path) -> bytes:
    return b"\x1f\x8b" + bytes(range(256)) * 10


# ---- zip


def zip_of(*members: tuple[str | zipfile.ZipInfo, bytes], good: bool = True) -> bytes:
    """A zip with a good picture and these members."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        if good:
            archive.writestr(GOOD, picture())
        for name, content in members:
            archive.writestr(name, content)
    return written.getvalue()


def _zip_names(reason: str, **names: str) -> None:
    for case, name in names.items():
        ALL[f"zip_{case}"] = HostileArchive(
            _made(zip_of, (name, picture())),
            skipped_with=reason,
        )


_zip_names(
    "leads out", goes_up="../escaped.png", goes_far_up="../" * 20 + "tmp/escaped.png", backslashes="a\\..\\..\\b.png"
)
_zip_names("absolute", is_absolute="/tmp/escaped.png", has_a_drive="C:/escaped.png")
_zip_names("characters", has_escapes="\x1b[2J.png", has_a_pipe="a|b.png")
_zip_names("Windows", is_a_device="aux.jpg")
_zip_names("case or accents", differs_in_case="Good.PNG")


def _moded(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


@_hostile("is a link")
def zip_with_a_link(_: Path) -> bytes:
    return zip_of((_moded("a.png", 0o120777), b"/etc/passwd"))


@_hostile("is a device")
def zip_with_a_device(_: Path) -> bytes:
    return zip_of((_moded("a.png", 0o020666), b""))


@_hostile("is a device")
def zip_with_a_pipe(_: Path) -> bytes:
    return zip_of((_moded("a.png", 0o010666), b""))


@_hostile("is encrypted")
def zip_with_an_encrypted_file(_: Path) -> bytes:
    return _patched(zip_of(("a.png", picture())), b"a.png", local=6, listed=8, value=struct.pack("<H", 1))


def _patched(content: bytes, name: bytes, *, local: int | None, listed: int | None, value: bytes) -> bytes:
    """The archive with a field of a member changed, in front of it and in the list."""
    changed = bytearray(content)
    places = []
    if local is not None:
        places.append(content.index(name) - 30 + local)
    if listed is not None:
        places.append(content.rindex(name) - 46 + listed)
    for place in places:
        changed[place : place + len(value)] = value
    return bytes(changed)


@_refused("damaged")
def zip_whose_member_is_larger_than_it_says(_: Path) -> bytes:
    content = zip_of(("a.png", b"\x89PNG\r\n\x1a\n" + bytes(100_000)))
    return _patched(content, b"a.png", local=22, listed=24, value=struct.pack("<I", 100))


@_refused("damaged")
def zip_whose_member_is_smaller_than_it_says(_: Path) -> bytes:
    content = zip_of(("a.png", picture()))
    return _patched(content, b"a.png", local=22, listed=24, value=struct.pack("<I", 10_000))


@_refused("damaged")
def zip_with_a_wrong_checksum(_: Path) -> bytes:
    return _patched(zip_of(("a.png", picture())), b"a.png", local=14, listed=16, value=b"\0\0\0\0")


@_refused("damaged")
def zip_with_an_unknown_method(_: Path) -> bytes:
    return _patched(zip_of(("a.png", picture())), b"a.png", local=8, listed=10, value=struct.pack("<H", 99))


@_refused("damaged")
def zip_whose_list_has_other_names(_: Path) -> bytes:
    return _patched(zip_of(("a.png", picture())), b"a.png", local=None, listed=46, value=b"b.png")


@_refused("damaged")
def zip_cut_short(_: Path) -> bytes:
    return zip_of(("a.png", picture()))[:-30]


@_refused("more files than")
def zip_with_an_endless_list(_: Path) -> bytes:
    content = bytearray(zip_of() + b"")
    end = content.rindex(b"PK\x05\x06")
    content[end:end] = bytes(12 * _MIB)
    end = content.rindex(b"PK\x05\x06")
    content[end + 12 : end + 16] = struct.pack("<I", 12 * _MIB)
    return bytes(content)


@_refused("times its size")
def zip_bomb(_: Path) -> bytes:
    return zip_of(("a.png", bytes(100 * _MIB)), ("b.png", bytes(100 * _MIB)))


@_refused("times its size")
def zip_bomb_that_shares_its_bytes(_: Path) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(10 * _MIB))
        archive.filelist.extend([archive.infolist()[0]] * 2000)
    return written.getvalue()


@_hostile("another file")
def zip_with_a_name_many_times(_: Path) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr(GOOD, picture())
        archive.filelist.extend([archive.infolist()[0]] * 20_000)
    return written.getvalue()


@_hostile("neither")
def zip_in_a_zip(_: Path) -> bytes:
    return zip_of(("inner.zip", zip_of(("a.png", picture()))))


@_hostile("is none")
def zip_in_a_zip_named_like_an_image(_: Path) -> bytes:
    return zip_of(("inner.png", zip_of(("a.png", picture()))))


@_refused("no image")
def zip_without_anything(_: Path) -> bytes:
    return zip_of(good=False)


# ---- what is no archive


@_refused("bsdtar")
def seven_zip(_: Path) -> bytes:
    return b"7z\xbc\xaf\x27\x1c" + bytes(100)


@_refused("bsdtar")
def rar(_: Path) -> bytes:
    return b"Rar!\x1a\x07\x01\0" + bytes(100)


@_refused("neither a zip nor a tar")
def text(_: Path) -> bytes:
    return b"#!/bin/sh\ntouch escaped\n" * 100


@_refused("neither a zip nor a tar")
def nothing(_: Path) -> bytes:
    return b""


@_refused("neither a zip nor a tar")
def picture_with_a_zip_behind_it(_: Path) -> bytes:
    return picture() + zip_of(("a.png", picture()))


@_refused("named pipe")
def pipe_in_place_of_an_archive(path: Path) -> None:
    os.mkfifo(path)


@_refused("is a device")
def zeros_in_place_of_an_archive(path: Path) -> None:
    path.symlink_to("/dev/zero")


@_refused("is a folder")
def folder_in_place_of_an_archive(path: Path) -> None:
    path.mkdir()


def names() -> Sequence[str]:
    """Of all of them, in order."""
    return list(ALL)
