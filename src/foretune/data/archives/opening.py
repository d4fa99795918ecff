"""Finds out what kind of archive a file is, by its content."""

from pathlib import Path
from typing import BinaryIO

from foretune.core.input_files import RefusedFile
from foretune.data.archives.limits import ImportLimits
from foretune.data.archives.member import ArchiveReader
from foretune.data.archives.tar import TarReader, is_tar
from foretune.data.archives.unpacking import ByteStream, compression_of
from foretune.data.archives.zip import ZipReader, is_zip

_HEAD_BYTES = 512
_CONVERTED = {b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!\x1a\x07": "RAR"}


def open_archive(file: BinaryIO, archive: Path, limits: ImportLimits) -> ArchiveReader:
    """Returns the reader of an open file; raises `RefusedFile` where it is no archive that can be streamed."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    if is_zip(head):
        return ZipReader(file, archive, limits)
    compression = compression_of(head)
    if compression is not None or is_tar(head):
        return TarReader(ByteStream(file, archive, limits, compression), archive)
    for magic, name in _CONVERTED.items():
        if head.startswith(magic):
            raise RefusedFile(
                archive,
                f"is a {name} archive, which cannot be read as a stream. Convert it without extracting it, then import "
                f"that: bsdtar -cf DATA.tar @{archive.name}",
            )
    raise RefusedFile(archive, "is neither a zip nor a tar (also .gz, .bz2, .xz, .zst), so it is not imported.")
