"""Tar archives, read header by header.

Written here because `tarfile` reads extended headers of any size into memory and follows sparse maps. Of the format,
only what archives of images need is understood: names (ustar, GNU and pax), sizes, and the kinds of members.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from foretune.data.archives.limits import DamagedArchive
from foretune.data.archives.member import Kind, Member
from foretune.data.archives.unpacking import ByteStream

_BLOCK = 512
_READ_BYTES = 256 * 1024
_MOST_NAME_BYTES = 4096
_MOST_PAX_BYTES = 64 * 1024
_KINDS: dict[bytes, Kind] = {
    **dict.fromkeys((b"\0", b"0", b"7"), "file"),
    b"5": "folder",
    **dict.fromkeys((b"1", b"2"), "link"),
    **dict.fromkeys((b"3", b"4", b"6"), "device"),
    b"S": "sparse",
}
_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL_PAX = b"L", b"K", b"x", b"g"
_EMPTY = bytes(_BLOCK)
_PAX_RECORD = re.compile(rb"(\d{1,8}) ([^=\n]{1,200})=")
_NEGATIVE_OR_BINARY = 0x80


class TarReader:
    """Members of a tar, in its order."""

    def __init__(self, stream: ByteStream, archive: Path) -> None:
        self._stream, self._archive = stream, archive
        self._left_bytes = self._padding_bytes = 0

    def members(self) -> Iterator[Member]:
        name: str | None = None
        pax: dict[str, bytes] = {}
        while (header := self._next_header()) is not None:
            kind, num_bytes = header[156:157], self._number(header[124:136])
            if kind == _LONG_NAME:
                name = _text(self._extension(num_bytes, _MOST_NAME_BYTES).rstrip(b"\0"))
            elif kind == _PAX:
                pax = _pax_records(self._extension(num_bytes, _MOST_PAX_BYTES), self._archive)
            elif kind in (_LONG_LINK, _GLOBAL_PAX):
                self._begin(num_bytes)  # where links lead, and what all members share, is of no use here
            else:
                if "size" in pax:
                    num_bytes = self._decimal(pax["size"])
                has_content = kind not in b"123456" or kind == b""
                self._begin(num_bytes if has_content else 0)
                yield Member(self._name_of(header, name, pax), num_bytes, self._kind_of(kind, pax))
                name, pax = None, {}

    def blocks(self) -> Iterator[bytes]:
        while self._left_bytes:
            block = self._stream.read(min(_READ_BYTES, self._left_bytes))
            if not block:
                raise DamagedArchive(self._archive, "it is cut short")
            self._left_bytes -= len(block)
            yield block

    def done_bytes(self) -> int:
        return self._stream.done_bytes()

    def close(self) -> None:
        """Nothing is open but the file, which belongs to others."""

    def _next_header(self) -> bytes | None:
        """The next header; None at the end, which an empty block or the end of the file marks."""
        for _ in self.blocks():
            pass
        if self._padding_bytes:
            self._stream.read(self._padding_bytes)
            self._padding_bytes = 0
        header = self._stream.read(_BLOCK)
        if not header or header == _EMPTY:
            self._stream.read_to_the_end()
            return None
        if len(header) < _BLOCK:
            raise DamagedArchive(self._archive, "it is cut short")
        stated = self._number(header[148:156])
        if stated != _checksum(header):
            raise DamagedArchive(self._archive, "a header has another checksum than it says")
        return header

    def _begin(self, num_bytes: int) -> None:
        self._left_bytes, self._padding_bytes = num_bytes, -num_bytes % _BLOCK

    def _extension(self, num_bytes: int, most_bytes: int) -> bytes:
        if num_bytes > most_bytes:
            raise DamagedArchive(self._archive, f"a header is continued for {num_bytes:,} bytes")
        self._begin(num_bytes)
        return b"".join(self.blocks())

    def _name_of(self, header: bytes, long_name: str | None, pax: dict[str, bytes]) -> str:
        if "path" in pax:
            return _text(pax["path"])
        if long_name is not None:
            return long_name
        name, prefix = _text(_field(header[:100])), _text(_field(header[345:500]))
        return f"{prefix}/{name}" if prefix and header[257:263] == b"ustar\0" else name

    def _kind_of(self, kind: bytes, pax: dict[str, bytes]) -> Kind:
        if any(key.startswith("GNU.sparse") for key in pax):
            return "sparse"
        return _KINDS.get(kind, "device")

    def _number(self, field: bytes) -> int:
        if field[0] & _NEGATIVE_OR_BINARY:
            number = int.from_bytes(field[1:], "big") if field[0] == _NEGATIVE_OR_BINARY else -1
        else:
            digits = field.strip(b" \0") or b"0"
            number = int(digits, 8) if digits.isdigit() and not set(digits) & set(b"89") else -1
        if not 0 <= number < 2**63:
            raise DamagedArchive(self._archive, "a header has a size that is no number")
        return number

    def _decimal(self, field: bytes) -> int:
        if not field.isdigit() or len(field) > len(str(2**63)):
            raise DamagedArchive(self._archive, "a header has a size that is no number")
        return int(field)


def is_tar(head: bytes) -> bool:
    """Whether the first block of a file is a header: its checksum says so, in every kind of tar."""
    if len(head) < _BLOCK:
        return False
    digits = head[148:156].strip(b" \0")
    return digits.isdigit() and not set(digits) & set(b"89") and int(digits, 8) == _checksum(head[:_BLOCK])


def _checksum(header: bytes) -> int:
    """The sum of its bytes, with spaces in place of the stored checksum."""
    return sum(header) - sum(header[148:156]) + 8 * ord(" ")


def _field(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _pax_records(data: bytes, archive: Path) -> dict[str, bytes]:
    """Lines such as `18 path=a/b.png`, each with its own length in front."""
    records: dict[str, bytes] = {}
    place = 0
    while place < len(data):
        found = _PAX_RECORD.match(data, place)
        end = place + int(found[1]) if found else 0
        if found is None or end > len(data) or end <= found.end() or data[end - 1 : end] != b"\n":
            raise DamagedArchive(archive, "an extended header cannot be read")
        records[found[2].decode("utf-8", "replace")] = data[found.end() : end - 1]
        place = end
    return records
