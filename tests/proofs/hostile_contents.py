"""What may lie where a file of tensors or of JSON is expected: bombs, damage, lies about sizes, pipes, devices, links.

Each is a function that puts something at a path. None of it runs code; `hostile_pickles` has what does.
"""

import gzip
import io
import json
import lzma
import os
import socket
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

Make = Callable[[Path], object]

SPECIAL: dict[str, Make] = {}
"""What is not a regular file of this folder."""
BOMBS: dict[str, Make] = {}
"""Files that unpack to, or say they have, far more than they are."""
TENSORS: dict[str, Make] = {}
"""Almost safetensors."""
TEXTS: dict[str, Make] = {}
"""Almost JSON."""
_MIB = 2**20


def _in(table: dict[str, Make]) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        table[make.__name__] = make
        return make

    return add


def _bytes(content: bytes) -> Make:
    def make(path: Path) -> None:
        path.write_bytes(content)

    return make


# ---- what is not a file of this folder


@_in(SPECIAL)
def link_to_zeros_without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


@_in(SPECIAL)
def link_to_noise_without_end(path: Path) -> None:
    path.symlink_to("/dev/urandom")


@_in(SPECIAL)
def link_to_a_terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


@_in(SPECIAL)
def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


@_in(SPECIAL)
def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name(f"{path.name}.pipe"))
    path.symlink_to(f"{path.name}.pipe")


@_in(SPECIAL)
def pipe(path: Path) -> None:
    os.mkfifo(path)


@_in(SPECIAL)
def folder(path: Path) -> None:
    path.mkdir()


@_in(SPECIAL)
def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its address has at most 107 letters
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


@_in(SPECIAL)
def sparse_file_of_a_tebibyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


# ---- bombs


@cache
def _zip_bomb() -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("archive/data.pkl", "mu.npy", "../../../escaped"):
            archive.writestr(name, bytes(100 * _MIB))
    return written.getvalue()


@_in(BOMBS)
def zip_bomb(path: Path) -> None:
    path.write_bytes(_zip_bomb())


@_in(BOMBS)
def zip_bomb_of_one_place(path: Path) -> None:
    """Many entries that share their compressed bytes."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mu.npy", bytes(100 * _MIB))
        first = archive.infolist()[0]
        archive.filelist.extend([first] * 1000)
    path.write_bytes(written.getvalue())


@_in(BOMBS)
def gzip_bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(100 * _MIB), compresslevel=9, mtime=0))


@_in(BOMBS)
def xz_bomb(path: Path) -> None:
    path.write_bytes(lzma.compress(bytes(50 * _MIB), preset=0))


@_in(BOMBS)
def xz_that_needs_gibibytes(path: Path) -> None:
    path.write_bytes(
        lzma.compress(b"{}", format=lzma.FORMAT_XZ, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**20}])[:-12]
    )


@_in(BOMBS)
def npy_of_exabytes(path: Path) -> None:
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,), }"
    head += b" " * (117 - len(head)) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)


# ---- almost safetensors


def _safetensors(header: str | bytes, body: bytes = b"", *, header_bytes: int | None = None) -> bytes:
    encoded = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(encoded) if header_bytes is None else header_bytes) + encoded + body


def _entry(begin: int, end: int, shape: object = (1,), dtype: str = "F32") -> str:
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]})


_HEADERS: dict[str, tuple[str | bytes, bytes]] = {
    "header_that_is_no_json": (b"\x80\x02}q\0.", b""),
    "header_that_is_not_utf8": (b'{"\xff\xfe":1}', b""),
    "header_that_is_a_list": ("[1,2]", b""),
    "header_of_null": ("null", b""),
    "header_cut_short": ('{"a":{"dtype":"F32"', b""),
    "header_with_a_comment": ('{"a":1}//', b""),
    "offsets_that_overlap": (f'{{"a":{_entry(0, 4)},"b":{_entry(2, 6)}}}', bytes(6)),
    "offsets_that_are_equal": (f'{{"a":{_entry(0, 4)},"b":{_entry(0, 4)}}}', bytes(4)),
    "offsets_outside": (f'{{"a":{_entry(0, 4)}}}', b""),
    "offsets_far_outside": (f'{{"a":{_entry(2**62, 2**62 + 4)}}}', bytes(4)),
    "offsets_below_zero": (f'{{"a":{_entry(-4, 0)}}}', bytes(4)),
    "offsets_backwards": (f'{{"a":{_entry(4, 0)}}}', bytes(4)),
    "offsets_with_a_gap": (f'{{"a":{_entry(0, 4)},"b":{_entry(8, 12)}}}', bytes(12)),
    "offsets_as_text": ('{"a":{"dtype":"F32","shape":[1],"data_offsets":["0","4"]}}', bytes(4)),
    "bytes_that_no_tensor_has": (f'{{"a":{_entry(0, 4)}}}', bytes(64)),
    "size_that_is_not_of_the_shape": (f'{{"a":{_entry(0, 4, [1000])}}}', bytes(4)),
    "shape_that_overflows": (f'{{"a":{_entry(0, 4, [2**32, 2**32])}}}', bytes(4)),
    "shape_that_overflows_to_the_size": (f'{{"a":{_entry(0, 4, [2**33, 2**31 + 1])}}}', bytes(4)),
    "shape_beyond_64_bits": (f'{{"a":{_entry(0, 4, [10**30])}}}', bytes(4)),
    "shape_below_zero": (f'{{"a":{_entry(0, 4, [-1, -1])}}}', bytes(4)),
    "shape_of_fractions": (f'{{"a":{_entry(0, 4, [1.5])}}}', bytes(4)),
    "shape_that_is_not_a_number": ('{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)),
    "shape_without_end": ('{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,4]}}', bytes(4)),
    "shape_of_a_million_dimensions": (f'{{"a":{_entry(0, 4, [1] * 1_000_000)}}}', bytes(4)),
    "dtype_that_is_unknown": (f'{{"a":{_entry(0, 4, dtype="OBJECT")}}}', bytes(4)),
    "dtype_that_is_missing": ('{"a":{"shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "name_twice": (f'{{"a":{_entry(0, 4)},"a":{_entry(4, 8)}}}', bytes(8)),
    "metadata_that_is_no_text": (f'{{"__metadata__":{{"x":[1]}},"a":{_entry(0, 4)}}}', bytes(4)),
    "header_nested_deeply": ('{"a":' + "[" * 100_000, b""),
    "header_of_spaces": (" " * 50_000_000, b""),
    "number_of_a_million_digits": ('{"a":{"dtype":"F32","shape":[' + "9" * 1_000_000 + '],"data_offsets":[0,4]}}', b""),
}


def _tensors(header: str | bytes, body: bytes) -> Make:
    return _bytes(_safetensors(header, body))


TENSORS |= {name: _tensors(header, body) for name, (header, body) in _HEADERS.items()}


@_in(TENSORS)
def empty_file(path: Path) -> None:
    path.write_bytes(b"")


@_in(TENSORS)
def seven_bytes(path: Path) -> None:
    path.write_bytes(bytes(7))


@_in(TENSORS)
def header_of_no_bytes(path: Path) -> None:
    path.write_bytes(bytes(8))


@_in(TENSORS)
def header_longer_than_the_file(path: Path) -> None:
    path.write_bytes(_safetensors("{}", header_bytes=10_000))


@_in(TENSORS)
def header_of_exbibytes(path: Path) -> None:
    path.write_bytes(_safetensors("{}", header_bytes=2**63))


@_in(TENSORS)
def header_whose_length_overflows(path: Path) -> None:
    path.write_bytes(_safetensors("{}", header_bytes=2**64 - 1))


@cache
def _million_names() -> bytes:
    entry = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    return _safetensors("{" + ",".join(f'"t{number}":{entry}' for number in range(1_000_000)) + "}")


@_in(TENSORS)
def a_million_tensors_of_nothing(path: Path) -> None:
    path.write_bytes(_million_names())


# ---- almost JSON


_TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "nul_characters": bytes(100),
    "noise": bytes(range(255, 127, -1)),
    "utf16": '{"a": 1}'.encode("utf-16"),
    "nested_lists": b"[" * 200_000,
    "nested_objects": b'{"a":' * 200_000,
    "half_an_object": b'{"format_version": 1, "step": ',
    "list_in_place_of_an_object": b"[1, 2, 3]",
    "text_in_place_of_an_object": b'"all is well"',
    "number_in_place_of_an_object": b"1e999",
    "not_a_number": b'{"format_version": NaN, "step": Infinity, "version": -Infinity}',
    "integer_of_a_million_digits": b'{"format_version": ' + b"9" * 1_000_000 + b"}",
    "wrong_kinds": b'{"format_version": {}, "step": [], "files": 3, "version": null, "steps": "x"}',
    "of_the_future": b'{"format_version": 9999999999, "version": 9999999999}',
    "half_a_letter": b'{"format_version": "\\ud800", "\\udfff": 1}',
    "seventy_megabytes": b'{"a": "' + b"x" * 70_000_000 + b'"}',
}


TEXTS |= {name: _bytes(content) for name, content in _TEXTS.items()}
