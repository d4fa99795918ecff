"""Data folders that somebody else made: links, pipes, devices, bombs, damage, strange names.

Each is a function that is given an empty folder and a folder outside of it with a secret text and a private image.
`REFUSED` ones must be refused with the given words in the message, among them the name of the file; `HARMLESS` ones
hold nothing that reaches anywhere, and are read.
"""

import io
import json
import os
import pickle
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

SECRET = "canary of the folder outside"
"""What the text outside says."""
Make = Callable[[Path, Path], None]


@dataclass(frozen=True)
class HostileFolder:
    """One folder, and what must become of it."""

    name: str
    make: Make
    refused_with: tuple[str, ...] = ()
    """Words that the message must hold; none where the folder must be read."""
    kind: str = "folder"
    is_unreadable: bool = False
    """Whether it is about permissions, which the superuser does not have to mind."""
    leads_outside: bool = False
    """Whether it is read, from outside too, with data.follow_links."""


ALL: dict[str, HostileFolder] = {}


def _hostile(
    *refused_with: str, kind: str = "folder", is_unreadable: bool = False, leads_outside: bool = False
) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        name = make.__name__
        ALL[name] = HostileFolder(name, make, refused_with, kind, is_unreadable, leads_outside)
        return make

    return add


def make_outside(folder: Path) -> None:
    """What no folder may reach: a text, an image, a metadata file, a table of labels."""
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    _image(folder / "private.png", (200, 10, 10))
    (folder / "rows.jsonl").write_text(json.dumps({"file_name": "a.png", "text": SECRET}))
    (folder / "labels.csv").write_text(f"id,label\n1,{SECRET}\n")
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": SECRET, b"labels": []}, protocol=2))


def _image(path: Path, colour: tuple[int, int, int] = (10, 200, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), colour).save(path, format="PNG")
    return path


def _png(width_px: int, height_px: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG that says it has this size; it holds as much as it likes."""
    head = (b"IHDR", struct.pack(">IIBBBBB", width_px, height_px, 8, 2, 0, 0, 0))
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (head, *chunks, (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _sparse(path: Path, num_bytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(num_bytes)


def _row(**row: object) -> str:
    return json.dumps(row) + "\n"


# ---- links


@_hostile("a.txt", "leads to", "secret.txt", leads_outside=True)
def caption_is_a_link_out(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").symlink_to(outside / "secret.txt")


@_hostile("a.txt", "leads to", "secret.txt", leads_outside=True)
def caption_is_a_relative_link_out(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").symlink_to(Path(os.path.relpath(outside, folder)) / "secret.txt")


@_hostile("a.txt", "leads to", "secret.txt", leads_outside=True)
def caption_is_a_link_to_a_link_out(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / ".hop").symlink_to(outside / "secret.txt")
    (folder / "a.txt").symlink_to(".hop")


@_hostile("a.png", "leads to", "private.png", leads_outside=True)
def image_is_a_link_out(folder: Path, outside: Path) -> None:
    (folder / "a.png").symlink_to(outside / "private.png")


@_hostile("sub/b.png", "leads to", "private.png", leads_outside=True)
def image_in_a_subfolder_is_a_link_out(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.png").symlink_to(outside / "private.png")


@_hostile("metadata.jsonl", "leads to", leads_outside=True)
def metadata_is_a_link_out(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "metadata.jsonl").symlink_to(outside / "rows.jsonl")


@_hostile(leads_outside=True)
def folder_is_a_link_out(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "more").symlink_to(outside)


@_hostile("a.txt", "leads to")
def caption_is_the_environment_of_the_process(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").symlink_to("/proc/self/environ")


@_hostile("a.txt", "leads to", "/etc/passwd")
def caption_is_the_list_of_users(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").symlink_to("/etc/passwd")


@_hostile("a.png", "leads back to itself")
def image_is_a_link_to_itself(folder: Path, outside: Path) -> None:
    (folder / "a.png").symlink_to("a.png")


@_hostile("a.png", "leads back to itself")
def images_are_links_in_a_circle(folder: Path, outside: Path) -> None:
    (folder / "a.png").symlink_to("b.png")
    (folder / "b.png").symlink_to("a.png")


@_hostile("a.txt", "leads back to itself")
def caption_is_a_link_to_itself(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").symlink_to("a.txt")


@_hostile("a.png", "cannot be opened (No such file or directory)")
def image_is_a_link_to_nothing(folder: Path, outside: Path) -> None:
    (folder / "a.png").symlink_to("gone.png")


@_hostile()
def folders_link_in_a_circle(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "sub").mkdir()
    (folder / "sub" / "around").symlink_to("..")
    (folder / "b.png").symlink_to(".")


@_hostile("a.png", "leads to /dev/zero")
def image_is_a_link_to_zeros_without_end(folder: Path, outside: Path) -> None:
    (folder / "a.png").symlink_to("/dev/zero")


@_hostile("a.txt", "leads to /dev/zero")
def caption_is_a_link_to_zeros_without_end(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").symlink_to("/dev/zero")


@_hostile("metadata.jsonl", "leads to /dev/urandom")
def metadata_is_a_link_to_noise_without_end(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "metadata.jsonl").symlink_to("/dev/urandom")


@_hostile("Line 1", "metadata.jsonl", "private.png", "outside of")
def metadata_names_an_image_outside(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    name = os.path.relpath(outside / "private.png", folder)
    (folder / "metadata.jsonl").write_text(_row(file_name=name, text="x"))


@_hostile("Line 1", "metadata.jsonl", "/etc/passwd", "outside of")
def metadata_names_a_file_of_the_system(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "metadata.jsonl").write_text(_row(file_name="/etc/passwd", text="x"))


# ---- what is not a file


@_hostile("a.png", "is a named pipe")
def image_is_a_pipe(folder: Path, outside: Path) -> None:
    os.mkfifo(folder / "a.png")


@_hostile("a.txt", "is a named pipe")
def caption_is_a_pipe(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    os.mkfifo(folder / "a.txt")


@_hostile("metadata.jsonl", "is a named pipe")
def metadata_is_a_pipe(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    os.mkfifo(folder / "metadata.jsonl")


@_hostile("a.png", "is a named pipe")
def image_is_a_link_to_a_pipe_inside(folder: Path, outside: Path) -> None:
    os.mkfifo(folder / ".pipe")
    (folder / "a.png").symlink_to(".pipe")


def _listen(path: Path) -> None:
    """A socket stays in its folder when the program that made it has gone; its address has at most 107 letters."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


@_hostile("a.png", "is a socket")
def image_is_a_socket(folder: Path, outside: Path) -> None:
    _listen(folder / "a.png")


@_hostile("a.txt", "is a socket")
def caption_is_a_socket(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    _listen(folder / "a.txt")


@_hostile("a.txt", "is a folder")
def caption_is_a_folder(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").mkdir()


@_hostile()
def folders_are_named_like_images(folder: Path, outside: Path) -> None:
    _image(folder / "a.png" / "b.png")
    (folder / "metadata.jsonl").mkdir()


# ---- sizes


@_hostile("a.png", "has 1024.00 GiB; at most 512.00 MiB are read")
def image_of_a_tebibyte(folder: Path, outside: Path) -> None:
    _sparse(folder / "a.png", 2**40)


@_hostile("a.txt", "has 1.00 GiB; at most 1.00 MiB are read")
def caption_of_a_gibibyte(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    _sparse(folder / "a.txt", 2**30)


@_hostile("metadata.jsonl", "has 64.00 GiB; at most 1.00 GiB are read")
def metadata_of_many_gibibytes(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    _sparse(folder / "metadata.jsonl", 2**36)


@_hostile("a.txt", "at most 1.00 MiB are read")
def caption_of_two_million_letters(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").write_text("word " * 400_000)


@_hostile("Line 1", "metadata.jsonl", "longer than 1.00 MiB")
def caption_in_metadata_of_two_million_letters(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "metadata.jsonl").write_text(_row(file_name="a.png", text="word " * 400_000))


@_hostile("a.png", "cannot be read")
def image_of_no_bytes(folder: Path, outside: Path) -> None:
    (folder / "a.png").touch()


def _cut(path: Path, image_format: str) -> None:
    content = io.BytesIO()
    Image.effect_noise((64, 64), 80).convert("RGB").save(content, format=image_format)
    path.write_bytes(content.getvalue()[: len(content.getvalue()) // 2])


@_hostile("a.png", "cannot be read")
def png_cut_short(folder: Path, outside: Path) -> None:
    _cut(folder / "a.png", "PNG")


@_hostile("a.jpg", "cannot be read")
def jpeg_cut_short(folder: Path, outside: Path) -> None:
    _cut(folder / "a.jpg", "JPEG")


@_hostile("a.webp", "cannot be read")
def webp_cut_short(folder: Path, outside: Path) -> None:
    _cut(folder / "a.webp", "WEBP")


@_hostile("a.tif", "cannot be read")
def tiff_cut_short(folder: Path, outside: Path) -> None:
    _cut(folder / "a.tif", "TIFF")


@_hostile("a.png", "at most 160 million are read")
def png_bomb(folder: Path, outside: Path) -> None:
    (folder / "a.png").write_bytes(_png(60_000, 60_000, (b"IDAT", zlib.compress(bytes(10_000_000)))))


@_hostile("a.png", "at most 160 million are read")
def png_bomb_that_pillow_itself_would_take(folder: Path, outside: Path) -> None:
    (folder / "a.png").write_bytes(_png(16_000, 10_001, (b"IDAT", zlib.compress(bytes(10_000_000)))))


@_hostile("a.png", "cannot be read")
def png_with_a_bomb_in_its_text(folder: Path, outside: Path) -> None:
    bombs = [(b"zTXt", b"key\0\0" + zlib.compress(bytes(60_000_000)))] * 40
    (folder / "a.png").write_bytes(_png(64, 64, *bombs, (b"IDAT", zlib.compress(bytes(64 * 193)))))


def _tiff(width_px: int, height_px: int, *, strip_bytes: int) -> bytes:
    """A TIFF with Deflate that says it has this size; one strip."""
    strip = zlib.compress(bytes(strip_bytes))
    entries = [
        *((256, 4, width_px), (257, 4, height_px), (258, 3, 8), (259, 3, 8), (262, 3, 1), (273, 4, 8)),
        *((277, 3, 1), (278, 4, height_px), (279, 4, len(strip))),
    ]
    table = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return b"II*\0" + struct.pack("<I", 8 + len(strip)) + strip + struct.pack("<H", len(entries)) + table + bytes(4)


@_hostile("a.tiff", "at most 160 million are read")
def tiff_bomb(folder: Path, outside: Path) -> None:
    (folder / "a.tiff").write_bytes(_tiff(100_000, 100_000, strip_bytes=10_000_000))


@_hostile("a.bmp", "at most 160 million are read")
def bmp_bomb(folder: Path, outside: Path) -> None:
    head = struct.pack("<IiiHHIIiiII", 40, 90_000, 90_000, 1, 24, 0, 0, 0, 0, 0, 0)
    (folder / "a.bmp").write_bytes(b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head + bytes(100))


@_hostile("a.png", "cannot be read")
def zip_bomb_named_like_an_image(folder: Path, outside: Path) -> None:
    with zipfile.ZipFile(folder / "a.png", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../../escaped.png", bytes(50_000_000))


@_hostile("a.png", "cannot be read")
def gif_named_like_a_png(folder: Path, outside: Path) -> None:
    Image.new("RGB", (64, 64)).save(folder / "a.png", format="GIF")


@_hostile("a.png", "cannot be read")
def postscript_named_like_a_png(folder: Path, outside: Path) -> None:
    (folder / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n(/etc/passwd) run\n")


# ---- names


@_hostile("a\\nError: all is well.png", "cannot be read")
def name_with_a_line_break(folder: Path, outside: Path) -> None:
    (folder / "a\nError: all is well.png").write_bytes(b"x")


@_hostile("\\x1b[2J\\x1b[31m.png", "cannot be read")
def name_with_escape_codes(folder: Path, outside: Path) -> None:
    (folder / "\x1b[2J\x1b[31m.png").write_bytes(b"x")


@_hostile("\\xff\\xfe.png", "cannot be read")
def broken_image_with_a_name_that_is_not_utf8(folder: Path, outside: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.png")).write_bytes(b"x")


@_hostile()
def image_with_a_name_that_is_not_utf8(folder: Path, outside: Path) -> None:
    _image(Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.png")))
    _image(Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9/b.png")))


@_hostile("\\u202egnp.exe.png", "cannot be read")
def name_that_reads_backwards(folder: Path, outside: Path) -> None:
    (folder / "\u202egnp.exe.png").write_bytes(b"x")


@_hostile("x" * 251 + ".png", "cannot be read")
def name_as_long_as_can_be(folder: Path, outside: Path) -> None:
    (folder / ("x" * 251 + ".png")).write_bytes(b"x")


@_hostile("2 of 3 images have no caption", "\\x07.png", "b\\r.png")
def names_with_bells_among_forgotten_captions(folder: Path, outside: Path) -> None:
    for name in ("\x07.png", "b\r.png", "c.png"):
        _image(folder / name)
    (folder / "c.txt").write_text("a harbour")


@_hostile()
def names_that_a_shell_would_obey(folder: Path, outside: Path) -> None:
    for name in ("-rf.png", "$(touch escaped).png", "`id`.png", "; reboot.png", "%s%n.png", "{0}.png", "[red].png"):
        _image(folder / name)


@_hostile()
def folders_sixty_deep(folder: Path, outside: Path) -> None:
    _image(folder.joinpath(*["deep"] * 60, "a.png"))


# ---- texts


@_hostile("a.txt", "has NUL characters")
def caption_with_nul(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").write_bytes(b"a harbour\0at dusk")


@_hostile("a.txt", "is not text in UTF-8")
def caption_of_bytes(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").write_bytes(bytes(range(255, 0, -1)))


@_hostile("a.txt", "is not text in UTF-8")
def caption_in_utf16(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").write_bytes("a harbour".encode("utf-16"))


@_hostile("Line 1", "metadata.jsonl", "not text")
def metadata_with_half_a_letter(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "metadata.jsonl").write_text(r'{"file_name": "a.png", "text": "\ud800"}')


@_hostile("Line 1", "metadata.jsonl", "nested too deeply")
def metadata_nested_without_end(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "metadata.jsonl").write_text("[" * 200_000)


@_hostile("Line 1", "metadata.jsonl", "not JSON")
def metadata_with_a_number_of_a_million_digits(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "metadata.jsonl").write_text("9" * 1_000_000)


@_hostile("Line 1", "metadata.jsonl", "a\\x00.png", "is not there")
def metadata_names_a_file_with_nul(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "metadata.jsonl").write_text(_row(file_name="a\0.png", text="x"))


@_hostile("Line 1", "metadata.jsonl", "is not there")
def metadata_names_a_file_longer_than_can_be(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "metadata.jsonl").write_text(_row(file_name="x" * 100_000 + ".png", text="x"))


# ---- permissions


@_hostile("a.png", "cannot be opened (Permission denied)", is_unreadable=True)
def unreadable_image(folder: Path, outside: Path) -> None:
    _image(folder / "a.png").chmod(0)


@_hostile("a.txt", "cannot be opened (Permission denied)", is_unreadable=True)
def unreadable_caption(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "a.txt").write_text("a harbour")
    (folder / "a.txt").chmod(0)


@_hostile("locked", "cannot be listed (Permission denied)", is_unreadable=True)
def unreadable_folder(folder: Path, outside: Path) -> None:
    _image(folder / "a.png")
    (folder / "locked").mkdir(mode=0)


# ---- CIFAR-10


@_hostile("1.png", "leads to", kind="cifar10", leads_outside=True)
def cifar10_image_is_a_link_out(folder: Path, outside: Path) -> None:
    (folder / "train").mkdir()
    (folder / "train" / "1.png").symlink_to(outside / "private.png")


@_hostile("data/train leads to", kind="cifar10", leads_outside=True)
def cifar10_folder_is_a_link_out(folder: Path, outside: Path) -> None:
    _image(outside / "train" / "1.png")
    (folder / "train").symlink_to(outside / "train")


@_hostile("trainLabels.csv", "leads to", kind="cifar10", leads_outside=True)
def cifar10_labels_are_a_link_out(folder: Path, outside: Path) -> None:
    _image(folder / "train" / "1.png")
    (folder / "trainLabels.csv").symlink_to(outside / "labels.csv")


@_hostile("trainLabels.csv", "is a named pipe", kind="cifar10")
def cifar10_labels_are_a_pipe(folder: Path, outside: Path) -> None:
    _image(folder / "train" / "1.png")
    os.mkfifo(folder / "trainLabels.csv")


@_hostile("data_batch_1", "is a named pipe", kind="cifar10")
def cifar10_batch_is_a_pipe(folder: Path, outside: Path) -> None:
    os.mkfifo(folder / "data_batch_1")


@_hostile("cifar-10-batches-py leads to", kind="cifar10")
def cifar10_folder_of_batches_is_a_link_out(folder: Path, outside: Path) -> None:
    (folder / "cifar-10-batches-py").symlink_to(outside)


@_hostile("data_batch_1", "leads to", kind="cifar10")
def cifar10_batch_is_a_link_out(folder: Path, outside: Path) -> None:
    (folder / "data_batch_1").symlink_to(outside / "data_batch_1")


@_hostile("data_batch_1", "keys that are neither text nor numbers", kind="cifar10")
def cifar10_batch_with_a_key_that_takes_for_ever_to_hash(folder: Path, outside: Path) -> None:
    # A pair of pairs of pairs, 100 deep: each level is the one before, twice.
    pairs = b"".join(b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(100))
    (folder / "data_batch_1").write_bytes(b"\x80\x02}K\x01" + pairs + b"K\x01s.")


@_hostile("data_batch_1", "more than 256 MiB", kind="cifar10")
def cifar10_batch_that_grows(folder: Path, outside: Path) -> None:
    text = b"x" * 2**20
    named = b"c_codecs\nencode\nq\0X" + struct.pack("<I", len(text)) + text + b"q\1"
    again = b"h\0h\1\x85R" * 100_000
    (folder / "data_batch_1").write_bytes(b"\x80\x02](" + named + again + b"e.")


# ---- datasets


@_hostile("x.parquet", "is a named pipe", kind="huggingface")
def dataset_is_a_pipe(folder: Path, outside: Path) -> None:
    os.mkfifo(folder / "x.parquet")


@_hostile("x.parquet", "leads to", "secret.txt", kind="huggingface")
def dataset_is_a_link_out(folder: Path, outside: Path) -> None:
    (folder / "x.parquet").symlink_to(outside / "secret.txt")


@_hostile("secret.txt", "outside of", kind="huggingface")
def dataset_is_made_of_files_outside(folder: Path, outside: Path) -> None:
    (folder / "dataset_info.json").write_text("{}")
    name = os.path.relpath(outside / "secret.txt", folder)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
