"""Zip archives: the list of members is bounded before it is read, and each member by what it says."""

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from foretune.core.input_files import RefusedFile
from foretune.data.archives.limits import MIB, DamagedArchive, ImportLimits
from foretune.data.archives.member import Kind, Member

_READ_BYTES = 256 * 1024
_MOST_LIST_BYTES = 10 * MIB
"""Of the list of members, which `zipfile` holds in memory: about 100,000 files."""
_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_ENCRYPTED = 0x1
_UNIX = 3
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    struct.error,
)


class _ShortReads(io.RawIOBase):
    """A file of which nothing long is read at once: the list of members is, and it is as long as the archive says."""

    def __init__(self, file: BinaryIO, archive: Path) -> None:
        self._file, self._archive = file, archive

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())
        if size > _MOST_LIST_BYTES:
            raise RefusedFile(
                self._archive,
                "lists more files than a zip is read with (about 100,000). Convert it without extracting it, then "
                f"import that: bsdtar -cf DATA.tar @{self._archive.name}",
            )
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


class ZipReader:
    """Members of a zip, in the order of its list."""

    def __init__(self, file: BinaryIO, archive: Path, limits: ImportLimits) -> None:
        self._file, self._archive = file, archive
        self._packed_bytes = os.fstat(file.fileno()).st_size
        try:
            self._zip = zipfile.ZipFile(_ShortReads(file, archive))
        except (*_BROKEN, OSError) as error:
            raise DamagedArchive(archive, str(error)) from error
        infos = self._zip.infolist()
        limits.require_members(archive, len(infos))
        # Several members may share their packed bytes, so the whole is compared with the whole.
        limits.require_ratio(archive, sum(info.file_size for info in infos), self._packed_bytes)
        self._infos = infos
        self._now: zipfile.ZipInfo | None = None
        self._done_bytes = 0

    def members(self) -> Iterator[Member]:
        for info in self._infos:
            self._now = info
            yield Member(info.filename, info.file_size, _kind_of(info))
            self._done_bytes += info.compress_size

    def blocks(self) -> Iterator[bytes]:
        assert self._now is not None, "a member is requested before its content"
        num_bytes = 0
        try:
            with self._zip.open(self._now) as content:
                while block := content.read(_READ_BYTES):
                    num_bytes += len(block)
                    yield block
        except (*_BROKEN, OSError) as error:
            raise DamagedArchive(self._archive, str(error)) from error
        if num_bytes != self._now.file_size:
            raise DamagedArchive(self._archive, "a file has another size than the list says")

    def done_bytes(self) -> int:
        return self._done_bytes

    def close(self) -> None:
        self._zip.close()


def is_zip(head: bytes) -> bool:
    return head.startswith(_MAGIC)


def _kind_of(info: zipfile.ZipInfo) -> Kind:
    if info.flag_bits & _ENCRYPTED:
        return "encrypted"
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    if stat.S_ISLNK(mode):
        return "link"
    if info.is_dir() or stat.S_ISDIR(mode):
        return "folder"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "device"
    return "file"
